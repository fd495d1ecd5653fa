// The implementation "cuda.columns": the forward of "cuda.causal" with its summaries on the chip
// (sm90/causal_columns.cuh), for language models of up to 32 blocks. Tensors that the copy engine
// cannot read, and the backward, go to what serves them for "cuda.causal".
#include <algorithm>
#include <cstdint>

#include "mhla/cuda/causal.h"
#include "mhla/cuda/implementations.h"
#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/causal_columns.h"
#include "mhla/cuda/sm90/tensor_map.h"

namespace mhla::cuda {
namespace {

using namespace sm90;

int blocks_of(const Problem& problem) {
  return static_cast<int>((problem.layout.tokens() + kTile - 1) / kTile);
}

std::int64_t items_of(const Problem& problem) {
  return problem.batch * problem.heads * ((problem.dv + kColumnsWidth - 1) / kColumnsWidth);
}

// Groups of blocks whose summaries are wanted after the next group has been read.
int kept_groups(const Problem& problem) {
  return std::max((blocks_of(problem) + kColumnsGroup - 1) / kColumnsGroup - 2, 0);
}

// Whether results can be written eight columns at a time.
bool has_rows_of_eight(const TensorView& view) {
  bool fits = reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0;
  for (int axis = 0; axis < 3; ++axis) {
    fits = fits && (view.shape[axis] == 1 || view.strides[axis] % 8 == 0);
  }
  return fits;
}

std::optional<std::string> refuses(const Problem& problem) {
  if (auto reason = causal_implementation().refuses(problem)) return reason;
  if (block_tiles(problem.layout) != 1) return "blocks of 64 tokens only";
  if (problem.dk <= 64) return "dk is 65 to 128";
  if (problem.layout.tokens() > kColumnsMost * kTile) return "at most 32 blocks";
  return std::nullopt;
}

// A thread block walks its items one after another. The time of a block is measured: on an H200 the
// language shape, two items of 32 blocks for most thread blocks, takes 122.6 us.
double predict_seconds(const Problem& problem, const PlanOptions&) {
  constexpr double kBlock = 1.85e-6, kLaunch = 4e-6;
  constexpr std::int64_t kProcessors = 132;
  const std::int64_t waves = (items_of(problem) + kProcessors - 1) / kProcessors;
  return kLaunch + static_cast<double>(waves * blocks_of(problem)) * kBlock;
}

std::size_t forward_workspace(const Problem& problem, const PlanOptions& options) {
  const std::int64_t blocks = std::min<std::int64_t>(items_of(problem),
                                                     multiprocessors(problem.device.index));
  const auto kept = static_cast<std::size_t>(blocks * kept_groups(problem) * kColumnsGroup) *
                    ColumnsPlan::kSlot;
  return std::max(beside_causal(problem).forward_workspace(problem, options), kept);
}

void forward(const PlanData& data, const ForwardInputs& inputs, const ForwardOutputs& outputs,
             const Workspace& workspace, Stream stream) {
  const DeviceGuard guard(data.problem.device.index);
  const auto& prepared = *static_cast<const CausalPrepared*>(data.prepared.get());
  const Problem& problem = data.problem;
  ColumnsArgs args{};
  const bool mapped = problem.batch * problem.heads > 0 && has_rows_of_eight(outputs.o) &&
                      make_tensor_map(args.q, inputs.q, 64, kTile) &&
                      make_tensor_map(args.k, inputs.k, 64, kTile) &&
                      make_tensor_map(args.v, inputs.v, kColumnsWidth, kTile);
  if (!mapped) {
    return prepared.other.implementation->forward(prepared.other, inputs, outputs, workspace,
                                                  stream);
  }
  args.blocks = blocks_of(problem);
  args.parts = static_cast<int>((problem.dv + kColumnsWidth - 1) / kColumnsWidth);
  args.items = static_cast<int>(items_of(problem));
  args.heads = static_cast<int>(problem.heads);
  args.dk = static_cast<int>(problem.dk);
  args.kept = workspace.data;
  args.keeps = kept_groups(problem);
  args.o = outputs.o.data;
  args.o_batch = outputs.o.strides[0];
  args.o_token = outputs.o.strides[1];
  args.o_head = outputs.o.strides[2];
  args.tokens = static_cast<int>(problem.layout.tokens());
  args.dv = static_cast<int>(problem.dv);
  set_weights(args, problem, inputs.mixing);
  launch_causal_columns(std::min(args.items, prepared.processors), args, stream);
}

std::string kernels(const Problem& problem) {
  const Implementation& other = beside_causal(problem);
  std::string text = "summaries on the chip where tensors allow (causal_columns); backward by " +
                     std::string(other.name);
  if (other.kernels != nullptr) text += ": " + other.kernels(problem);
  return text;
}

constexpr Implementation kColumns{.name = "cuda.columns",
                                  .refuses = refuses,
                                  .predict_seconds = predict_seconds,
                                  .forward_workspace = forward_workspace,
                                  .backward_workspace = causal_backward_workspace,
                                  .forward = forward,
                                  .backward = backward_beside_causal,
                                  .prepare = prepare_causal,
                                  .kernels = kernels};

}  // namespace

const Implementation& columns_implementation() { return kColumns; }

}  // namespace mhla::cuda
