// The implementation "cuda.causal": causal without a normaliser, scores in tiles on Hopper, for
// heads whose summaries are large beside their tokens. Tensors that the copy engine cannot read,
// and the backward, are served by "cuda.linear" or, short sequences, by "cuda.dense".
#include <algorithm>
#include <cstdint>

#include "mhla/core/cost.h"
#include "mhla/cuda/arguments.h"
#include "mhla/cuda/causal.h"
#include "mhla/cuda/implementations.h"
#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/causal_args.h"
#include "mhla/cuda/sm90/tensor_map.h"

namespace mhla::cuda {
namespace {

using namespace sm90;

std::optional<std::string> refuses(const Problem& problem) {
  if (auto reason = device_refuses(problem.device, 90)) return reason;
  if (problem.dtype != DType::bf16) return "bf16 only";
  if (problem.mask != Mask::causal) return "mask causal only";
  if (problem.normalizer != Normalizer::none) return "normalizer none only";
  if (problem.layout_k) return "queries and keys share their layout";
  if (causal_widths(problem.dk, problem.dv).dk == 0) return "dk is at most 128 and dv 256";
  if (block_tiles(problem.layout) == 0) return "one sequence in blocks of a multiple of 64 tokens";
  if (problem.layout.tokens() > 0x3fffffff ||
      problem.batch * problem.heads * ((problem.layout.tokens() + 127) / 128) > 0x3fffffff) {
    return "token and tile numbers are 32 bits wide";
  }
  return linear_implementation().refuses(problem);
}

// Whether the second half of the blocks sees the first as S~ (causal_far.cuh). The summaries of 16
// blocks pay from about 13 rows on that see them.
bool sees_far(const Problem& problem) {
  constexpr std::int64_t kLeast = 29, kMost = 2 * kFarGroup;
  const CausalWidths widths = causal_widths(problem.dk, problem.dv);
  const std::int64_t blocks = (problem.layout.tokens() + kTile - 1) / kTile;
  return widths.dk == 128 && widths.dv == 256 && block_tiles(problem.layout) == 1 &&
         blocks >= kLeast && blocks <= kMost;
}

// Products of the tiles that are seen over the rate measured on an H200 (docs/kernels/causal.md),
// on as many multiprocessors as have work.
double predict_seconds(const Problem& problem, const PlanOptions&) {
  constexpr double kRate = 630e12, kProcessors = 132, kLaunch = 4e-6, kFar = 0.92;
  const CausalWidths widths = causal_widths(problem.dk, problem.dv);
  const double tiles = static_cast<double>((problem.layout.tokens() + kTile - 1) / kTile);
  const double heads = static_cast<double>(problem.batch * problem.heads);
  const double flops = heads * tiles * (tiles + 2) / 2 * 2.0 * kTile * kTile *
                       static_cast<double>(widths.dk + widths.dv);
  const double busy = std::min(1.0, heads * std::max(1.0, tiles / 4) / kProcessors);
  return kLaunch + flops / kRate / busy * (sees_far(problem) ? kFar : 1);
}

// Pairs (batch entry, head) whose S~ have room at once, and their rows of S~.
struct FarRoom {
  std::int64_t pairs = 0, rows = 0;
  std::size_t bytes() const {
    return static_cast<std::size_t>(pairs * rows) * kFarParts * kBoxBytes;
  }
};
FarRoom far_room(const Problem& problem) {
  constexpr std::int64_t kMost = 128;
  if (!sees_far(problem)) return {};
  const std::int64_t blocks = (problem.layout.tokens() + kTile - 1) / kTile;
  return {std::min(problem.batch * problem.heads, kMost), (blocks - kFarGroup + 1) / 2 * 2};
}

std::size_t forward_workspace(const Problem& problem, const PlanOptions& options) {
  return std::max(beside_causal(problem).forward_workspace(problem, options),
                  far_room(problem).bytes());
}

// S~ of the second group, for `pairs` of them.
void make_far(const Problem& problem, const TensorView& mixing, const CausalArgs& causal, int pairs,
              int processors, void* far, Stream stream) {
  CausalFarArgs args{};
  args.k = causal.k;
  args.v = causal.v;
  args.far = far;
  args.rows = causal.far_rows;
  args.items = pairs * kFarParts;
  args.rows_stored = causal.tiles - kFarGroup;
  args.blocks = causal.tiles;
  args.first_pair = causal.first_pair;
  args.heads = causal.heads;
  set_weights(args, problem, mixing);
  launch_causal_far(std::min(args.items, processors), args, stream);
}

void forward(const PlanData& data, const ForwardInputs& inputs, const ForwardOutputs& outputs,
             const Workspace& workspace, Stream stream) {
  const DeviceGuard guard(data.problem.device.index);
  const auto& prepared = *static_cast<const CausalPrepared*>(data.prepared.get());
  const Problem& problem = data.problem;
  CausalArgs args{};
  constexpr int kColumns = 64, kStoredRows = 16;  // of a warp
  const bool mapped = problem.batch * problem.heads > 0 &&
                      make_tensor_map(args.q, inputs.q, kColumns, kTile) &&
                      make_tensor_map(args.k, inputs.k, kColumns, kTile) &&
                      make_tensor_map(args.v, inputs.v, kColumns, kTile) &&
                      make_tensor_map(args.o, outputs.o, kColumns, kStoredRows);
  if (!mapped) {
    return prepared.other.implementation->forward(prepared.other, inputs, outputs, workspace,
                                                  stream);
  }
  const std::int64_t pairs = problem.batch * problem.heads;
  args.tokens = static_cast<int>(problem.layout.tokens());
  args.tiles = (args.tokens + kTile - 1) / kTile;
  args.group_tiles = (args.tiles + 1) / 2 * 2;
  args.heads = static_cast<int>(problem.heads);
  args.dk = static_cast<int>(problem.dk);
  args.block_tiles = static_cast<int>(block_tiles(problem.layout));
  set_weights(args, problem, inputs.mixing);
  const FarRoom room = far_room(problem);
  if (room.pairs > 0) {
    args.group_tiles = kFarGroup;
    args.far = workspace.data;
    args.far_rows = static_cast<int>(room.rows);
  }
  args.units = (args.group_tiles / 2 + 1) / 2;
  const int groups = (args.tiles + args.group_tiles - 1) / args.group_tiles;
  const std::int64_t step = room.pairs > 0 ? room.pairs : pairs;
  for (std::int64_t first = 0; first < pairs; first += step) {
    const int count = static_cast<int>(std::min(step, pairs - first));
    args.first_pair = static_cast<int>(first);
    args.group_items = count * args.units;
    args.items = groups * args.group_items;
    if (room.pairs > 0) {
      make_far(problem, inputs.mixing, args, count, prepared.processors, workspace.data, stream);
    }
    launch_causal(causal_widths(problem.dk, problem.dv), std::min(args.items, prepared.processors),
                  args, stream);
  }
}

std::string kernels(const Problem& problem) {
  const Implementation& other = beside_causal(problem);
  std::string text = sees_far(problem) ? "what lies far back as mixed summaries (causal_far), "
                                       : "";
  text += "scores in tiles where tensors allow (causal_forward); backward by ";
  text += other.name;
  if (other.kernels != nullptr) text += ": " + other.kernels(problem);
  return text;
}

constexpr Implementation kCausal{.name = "cuda.causal",
                                 .refuses = refuses,
                                 .predict_seconds = predict_seconds,
                                 .forward_workspace = forward_workspace,
                                 .backward_workspace = causal_backward_workspace,
                                 .forward = forward,
                                 .backward = backward_beside_causal,
                                 .prepare = prepare_causal,
                                 .kernels = kernels};

}  // namespace

const Implementation& causal_implementation() { return kCausal; }

// The one that would go forward faster.
const Implementation& beside_causal(const Problem& problem) {
  const Implementation &dense = dense_implementation(), &linear = linear_implementation();
  if (dense.refuses(problem)) return linear;
  return dense.predict_seconds(problem, {}) < linear.predict_seconds(problem, {}) ? dense : linear;
}

std::shared_ptr<const void> prepare_causal(const Problem& problem) {
  const DeviceGuard guard(problem.device.index);
  const int processors = multiprocessors(problem.device.index);
  const Implementation& other = beside_causal(problem);
  // NOTE: made first; gcc 12 warns of half-made plans when the initialiser itself can throw.
  std::shared_ptr<const void> prepared = other.prepare(problem);
  PlanData plan{.problem = problem, .options = {}, .implementation = &other};
  plan.prepared = std::move(prepared);
  return std::make_shared<CausalPrepared>(
      CausalPrepared{.processors = processors, .other = std::move(plan)});
}

std::size_t causal_backward_workspace(const Problem& problem, const PlanOptions& options) {
  return beside_causal(problem).backward_workspace(problem, options);
}

void backward_beside_causal(const PlanData& data, const BackwardInputs& inputs,
                            const BackwardOutputs& outputs, const Workspace& workspace,
                            Stream stream) {
  const PlanData& other = static_cast<const CausalPrepared*>(data.prepared.get())->other;
  other.implementation->backward(other, inputs, outputs, workspace, stream);
}

}  // namespace mhla::cuda
