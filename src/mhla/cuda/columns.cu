// The implementation "cuda.columns": the forward of "cuda.causal" with its summaries on the chip
// (sm90/causal_columns.cuh), and its backward with summaries mixed in registers, for language
// models of up to 32 blocks. Tensors that the copy engine cannot read are served by "cuda.causal".
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

struct Prepared {
  int processors = 1;
  PlanData causal;    // forward, of tensors that are not for the engine
  PlanData backward;  // by "cuda.linear", which is told who asks
};

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

std::optional<std::string> refuses(const Problem& problem) {
  if (auto reason = causal_implementation().refuses(problem)) return reason;
  if (block_tiles(problem.layout) != 1) return "blocks of 64 tokens only";
  if (problem.dk <= 64) return "dk is 65 to 128";
  if (problem.layout.tokens() > kColumnsMost * kTile) return "at most 32 blocks";
  return std::nullopt;
}

// By arithmetic, not measured: shared memory moves 128 bytes a cycle, about 2,400 cycles a block.
double predict_seconds(const Problem& problem, const PlanOptions&) {
  constexpr double kBlock = 2400 / 1.8e9, kLaunch = 4e-6, kProcessors = 132;
  const double waves = static_cast<double>(items_of(problem)) / kProcessors;
  return kLaunch + std::max(waves, 1.0) * blocks_of(problem) * kBlock;
}

std::shared_ptr<const void> prepare(const Problem& problem) {
  const DeviceGuard guard(problem.device.index);
  int processors = 1;
  check_call(
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, problem.device.index),
      "cudaDeviceGetAttribute");
  // NOTE: made first; gcc 12 warns of half-made plans when the initialiser itself can throw.
  const auto plan_of = [&](const Implementation& other) {
    std::shared_ptr<const void> prepared = other.prepare(problem);
    PlanData plan{.problem = problem,
                  .options = {.implementation = "cuda.columns"},
                  .implementation = &other};
    plan.prepared = std::move(prepared);
    return plan;
  };
  PlanData causal = plan_of(causal_implementation()), backward = plan_of(linear_implementation());
  return std::make_shared<Prepared>(Prepared{
      .processors = processors, .causal = std::move(causal), .backward = std::move(backward)});
}

// NOTE: the number of multiprocessors is not known here; a kept group is 128 KB of each.
std::size_t forward_workspace(const Problem& problem, const PlanOptions& options) {
  const std::int64_t blocks = std::min<std::int64_t>(items_of(problem), kColumnsGrid);
  const auto kept = static_cast<std::size_t>(blocks * kept_groups(problem) * kColumnsGroup) *
                    ColumnsPlan::kSlot;
  return std::max(causal_implementation().forward_workspace(problem, options), kept);
}
std::size_t backward_workspace(const Problem& problem, const PlanOptions& options) {
  return linear_implementation().backward_workspace(problem, options);
}

void forward(const PlanData& data, const ForwardInputs& inputs, const ForwardOutputs& outputs,
             const Workspace& workspace, Stream stream) {
  const DeviceGuard guard(data.problem.device.index);
  const auto& prepared = *static_cast<const Prepared*>(data.prepared.get());
  const Problem& problem = data.problem;
  ColumnsArgs args{};
  constexpr int kStoredRows = 16;  // of a warp
  const bool mapped = problem.batch * problem.heads > 0 &&
                      make_tensor_map(args.q, inputs.q, 64, kTile) &&
                      make_tensor_map(args.k, inputs.k, 64, kTile) &&
                      make_tensor_map(args.v, inputs.v, kColumnsWidth, kTile) &&
                      make_tensor_map(args.o, outputs.o, kColumnsWidth, kStoredRows);
  if (!mapped) {
    return causal_implementation().forward(prepared.causal, inputs, outputs, workspace, stream);
  }
  const TensorView& mixing = inputs.mixing;
  args.blocks = blocks_of(problem);
  args.parts = static_cast<int>((problem.dv + kColumnsWidth - 1) / kColumnsWidth);
  args.items = static_cast<int>(items_of(problem));
  args.heads = static_cast<int>(problem.heads);
  args.dk = static_cast<int>(problem.dk);
  args.kept = workspace.data;
  args.keeps = kept_groups(problem);
  args.feature = static_cast<Feature>(problem.feature_map);
  args.scale = static_cast<float>(problem.scale);
  args.mixing = static_cast<const float*>(mixing.data);
  args.mixing_head_stride = problem.mixing_per_head ? mixing.strides[0] : 0;
  args.mixing_row_stride = mixing.strides[mixing.rank - 2];
  args.mixing_column_stride = mixing.strides[mixing.rank - 1];
  launch_causal_columns(std::min({args.items, prepared.processors, kColumnsGrid}), args, stream);
}

void backward(const PlanData& data, const BackwardInputs& inputs, const BackwardOutputs& outputs,
              const Workspace& workspace, Stream stream) {
  const auto& prepared = *static_cast<const Prepared*>(data.prepared.get());
  linear_implementation().backward(prepared.backward, inputs, outputs, workspace, stream);
}

std::string kernels(const Problem& problem) {
  return "summaries on the chip where tensors allow (causal_columns), otherwise as cuda.causal; "
         "backward by cuda.linear, mixing in registers: " +
         linear_implementation().kernels(problem);
}

constexpr Implementation kColumns{
    .name = "cuda.columns",
    .refuses = refuses,
    .predict_seconds = predict_seconds,
    .forward_workspace = forward_workspace,
    .backward_workspace = backward_workspace,
    .forward = forward,
    .backward = backward,
    .prepare = prepare,
    .kernels = kernels,
    .only_by_name = "has run in the emulator only; ask for it by name"};

}  // namespace

const Implementation& columns_implementation() { return kColumns; }

}  // namespace mhla::cuda
