// Which problems have a streaming form, and the mixing weights block by block.
#include "mhla/core/state_setup.h"

#include <algorithm>
#include <utility>

#include "mhla/core/arithmetic.h"
#include "mhla/error.h"

namespace mhla::streaming {
namespace {

constexpr const char* kWhere = "state";

void check_streamable(const Problem& problem) {
  if (problem.batch < 1) fail(kWhere, "batch: a stream needs at least 1, got ", problem.batch);
  if (problem.layout_k) {
    fail(kWhere, "layout_k: a stream attends to its own past; cross-attention has none");
  }
  if (problem.mask == Mask::none) {
    fail(kWhere, "mask: a stream needs causal or block_causal, got none (every token would read ",
         "the future)");
  }
  const BlockLayout& layout = problem.layout;
  if (layout.axes() != 1) {
    fail(kWhere, "layout: a stream needs a 1-D layout, got ", layout.to_string());
  }
  if (layout.sequences().size() != 1) {
    fail(kWhere, "layout: a stream is one sequence, got ", layout.sequences().size(),
         " packed ones (", layout.to_string(), "); use a state for each, or the batch");
  }
  if (layout.cut().block.empty()) {
    fail(kWhere, "layout: a stream needs a block size (block=...); with a number of blocks the ",
         "size depends on a length that is not known yet, got ", layout.to_string());
  }
}

void check_device(const Problem& problem) {
  if (problem.device.kind == Device::Kind::cuda && problem.dtype == DType::f64) {
    fail(ErrorCode::unsupported, kWhere, "dtype: streams of f64 run on the CPU, got ",
         to_string(problem.device), "; a device takes f32, bf16 and f16");
  }
}

void check_mixing(const Problem& problem, const MixingMatrix& mixing) {
  const std::int64_t heads = problem.mixing_per_head ? problem.heads : 0;
  if (mixing.heads() != heads) {
    fail(kWhere, "mixing: expected ",
         heads == 0 ? "one matrix shared by all heads" : "one per head", " (heads = ", heads,
         "), got heads = ", mixing.heads());
  }
  if (mixing.rows() < 1 || mixing.cols() < mixing.rows()) {
    fail(kWhere, "mixing: every row i needs columns 0 .. i, got ", mixing.rows(), " rows and ",
         mixing.cols(), " columns");
  }
}

void check_mixing(const Problem& problem, const ToeplitzMixing& mixing) {
  if (mixing.axes() != 1) {
    fail(kWhere, "mixing: a stream needs a 1-D Toeplitz form, got ", mixing.axes(), " axes");
  }
  if (problem.mixing_per_head) {
    fail(kWhere, "mixing: a Toeplitz form is shared by all heads, but the problem has ",
         "mixing_per_head");
  }
}

std::int64_t padded(std::int64_t x) { return checked_add(kWhere, x, 15) / 16 * 16; }

// A step of a large batch costs what it reads, so a device keeps bf16 streams in 16 bits. R and S
// are rounded whenever a slice takes up its tokens, 16 at a time: blocks are short, so that this
// happens a few times, and keys are wide, so that the roundings average out. f16 lacks the range.
bool packs(const Problem& problem, std::int64_t block) {
  constexpr std::int64_t kLongestBlock = 128, kNarrowestKey = 32;
  return problem.device.kind != Device::Kind::cpu && problem.dtype == DType::bf16 &&
         block <= kLongestBlock && problem.dk >= kNarrowestKey;
}

void lay_out(Setup& setup) {
  const Problem& problem = setup.problem;
  setup.row = padded(problem.dv);
  setup.key = padded(problem.dk);
  setup.den_at = checked_mul(kWhere, problem.dk, setup.row);
  setup.width = checked_add(kWhere, setup.den_at, padded(setup.den_width));
  setup.size = checked_mul(kWhere, setup.lanes, setup.width);
  // A device pays for every byte it rewrites, a processor for every short row it touches.
  const bool on_device = problem.device.kind != Device::Kind::cpu;
  setup.fold = on_device ? 16 : 8;
  setup.slice = padded((problem.dv + setup.fold - 1) / setup.fold);
  // No thread block of a device shares a slice with another, and the narrowest has 32 columns.
  if (on_device) setup.slice = std::min<std::int64_t>(setup.slice, 32);
  setup.slices = (setup.row + setup.slice - 1) / setup.slice;
  if (on_device) setup.z_copies = setup.slices;
  setup.packed = packs(problem, setup.block);
  setup.ring_v_at = setup.fold * setup.key;
  setup.ring_width = setup.ring_v_at + setup.fold * setup.row;
  setup.q_at = setup.z_copies * setup.key;
  const std::int64_t q_rows = problem.normalizer == Normalizer::shared_position ? setup.block : 0;
  setup.open_width = checked_add(kWhere, setup.q_at, checked_mul(kWhere, q_rows, setup.key));
  checked_mul(kWhere, checked_mul(kWhere, setup.lanes, setup.open_width), sizeof(double));
  checked_mul(kWhere, checked_mul(kWhere, setup.lanes, setup.ring_width), sizeof(double));
  checked_mul(kWhere, setup.size, sizeof(double));
}

}  // namespace

std::optional<std::int64_t> Setup::max_blocks() const {
  if (const auto* matrix = std::get_if<MixingMatrix>(&mixing)) return matrix->rows();
  return std::nullopt;
}

std::int64_t Setup::mixing_heads() const { return problem.mixing_per_head ? problem.heads : 1; }

std::vector<float> Setup::mixing_row(std::int64_t i) const {
  if (const auto* toeplitz = std::get_if<ToeplitzMixing>(&mixing)) return toeplitz->causal_row(i);
  const auto& matrix = std::get<MixingMatrix>(mixing);
  std::vector<float> weights;
  for (std::int64_t head = 0; head < mixing_heads(); ++head) {
    for (std::int64_t b = 0; b <= i; ++b) weights.push_back(matrix.at(i, b, head));
  }
  return weights;
}

std::size_t Setup::mixing_bytes() const {
  if (const auto* matrix = std::get_if<MixingMatrix>(&mixing)) {
    return matrix->data().size() * sizeof(float);
  }
  return std::get<ToeplitzMixing>(mixing).weights().size() * sizeof(float);
}

std::shared_ptr<const Setup> make_setup(const Problem& problem, Mixing mixing) {
  check(problem);
  check_streamable(problem);
  check_device(problem);
  std::visit([&](const auto& weights) { check_mixing(problem, weights); }, mixing);

  auto setup = std::make_shared<Setup>(Setup{.problem = problem, .mixing = std::move(mixing)});
  setup->block = problem.layout.cut().block[0];
  setup->problem.layout = BlockLayout::sequence(setup->block, {.block = {setup->block}});
  check(
      setup->problem);  // bounds B * H * C * dk and B * H * dk * dv, so no product below overflows
  setup->lanes = problem.batch * problem.heads;
  setup->s_width = problem.dk * problem.dv;
  switch (problem.normalizer) {
    case Normalizer::exact: setup->den_width = problem.dk; break;
    case Normalizer::shared_position: setup->den_width = setup->block; break;
    case Normalizer::none: break;
  }
  lay_out(*setup);
  return setup;
}

}  // namespace mhla::streaming
