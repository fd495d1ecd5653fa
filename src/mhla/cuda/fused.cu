// The implementation "cuda.fused": the linear form of one head inside one thread block, for
// summaries that fit its shared memory. The backward is that of "cuda.dense" or "cuda.linear".
#include <algorithm>
#include <cmath>

#include "mhla/core/cost.h"
#include "mhla/cuda/arguments.h"
#include "mhla/cuda/implementations.h"
#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/fused_args.h"

namespace mhla::cuda {
namespace {

using namespace sm90;

constexpr int kSharedLimit = 227 * 1024;  // of a thread block on sm_90

struct Shape {
  int width = 0, padded_blocks = 0, warps = 0;
  bool regular = false;  // blocks are alike and hold whole row tiles
  int offsets = 0;       // tokens of a query block and of a key block, when regular
};

bool blocks_alike(const BlockLayout& layout) {
  const Block& first = layout.blocks().front();
  return first.tokens() % kFusedRows == 0 &&
         std::all_of(layout.blocks().begin(), layout.blocks().end(),
                     [&](const Block& block) { return block.extent == first.extent; });
}

// Padded sizes and the number of warps, or nothing when the summaries do not fit.
std::optional<Shape> shape_of(const Problem& problem) {
  Shape shape;
  const std::int64_t wide = std::max(problem.dk, problem.dv);
  shape.width = wide <= 32 ? 32 : 64;
  const std::int64_t blocks = std::max(problem.layout.mixing_size(), problem.keys().mixing_size());
  if (wide > 64 || blocks > 64) return std::nullopt;
  shape.padded_blocks = static_cast<int>((blocks + 15) / 16 * 16);
  if (!fused_kernel_exists(shape.width, shape.padded_blocks)) return std::nullopt;
  // NOTE: the table of offsets must stay small beside the summaries.
  constexpr std::int64_t kMostOffsets = 1024;
  const std::int64_t offsets = problem.layout.max_block_tokens() +
                               problem.keys().max_block_tokens();
  shape.regular = blocks_alike(problem.layout) && blocks_alike(problem.keys()) &&
                  offsets <= kMostOffsets && problem.dk == shape.width && problem.dv == shape.width;
  shape.offsets = shape.regular ? static_cast<int>(offsets) : 0;
  // Warps take whole key blocks: the number that leaves the fewest idle in the last round.
  const int key_blocks = static_cast<int>(problem.keys().mixing_size());
  int best_idle = 0;
  for (int warps = fused_max_warps(shape.width); warps >= 6; --warps) {
    if (fused_bytes(shape.width, shape.padded_blocks, warps, shape.offsets) > kSharedLimit)
      continue;
    const int idle = (key_blocks + warps - 1) / warps * warps - key_blocks;
    if (shape.warps == 0 || idle < best_idle) {
      shape.warps = warps;
      best_idle = idle;
    }
  }
  if (shape.warps == 0) return std::nullopt;
  return shape;
}

struct Prepared {
  Shape shape;
  int processors = 1;
  DeviceTable<DeviceBlock> q_blocks, k_blocks;
  PlanData backward;  // the plan of the implementation that serves it
};

std::optional<std::string> refuses(const Problem& problem) {
  if (problem.device.kind != Device::Kind::cuda) return "runs on CUDA devices";
  if (problem.dtype != DType::bf16) return "summaries are kept in bf16, so inputs must be";
  if (problem.mask != Mask::none) return "mask none only";
  if (problem.normalizer == Normalizer::shared_position) return "normalizer exact or none only";
  if (problem.separate_denominator) return "the denominator reads the numerator's q and k";
  if (problem.layout.sequences().size() > 1) return "one sequence per batch entry only";
  if (!shape_of(problem)) return "the summaries of a head do not fit shared memory";
  if (problem.layout.tokens() > 0x7fffffff || problem.keys().tokens() > 0x7fffffff ||
      problem.batch * problem.heads > 0x7fffffff) {
    return "token and head numbers are 32 bits wide";
  }
  int major = 0;  // stays 0 without a driver: the plan's prepare step then says so
  const cudaError_t status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                                    problem.device.index);
  if (status == cudaSuccess && major != 9) return "needs compute capability 9.0";
  return std::nullopt;
}

// A head per multiprocessor at a time: whole waves of heads. The bandwidth is what the kernel
// reached on an H200 (docs/kernels/fused.md); narrow rows cost more instructions a byte.
double predict_seconds(const Problem& problem, const PlanOptions&) {
  constexpr double kProcessors = 132, kLaunch = 4e-6;
  const double bandwidth = shape_of(problem)->width == 32 ? 2.1e12 : 2.8e12;
  const double heads = static_cast<double>(problem.batch * problem.heads);
  const double waves = std::max(1.0, std::ceil(heads / kProcessors));
  const double bytes_per_head = linear_cost(problem).forward_bytes / std::max(heads, 1.0);
  return kLaunch + waves * bytes_per_head * kProcessors / bandwidth;
}

// Which of the others goes backward: the one that would go forward faster.
const Implementation& backward_implementation(const Problem& problem) {
  const Implementation &dense = dense_implementation(), &linear = linear_implementation();
  if (dense.refuses(problem)) return linear;
  return dense.predict_seconds(problem, {}) < linear.predict_seconds(problem, {}) ? dense : linear;
}

std::size_t forward_workspace(const Problem&, const PlanOptions&) { return 0; }
std::size_t backward_workspace(const Problem& problem, const PlanOptions& options) {
  return backward_implementation(problem).backward_workspace(problem, options);
}

std::shared_ptr<const void> prepare(const Problem& problem) {
  const DeviceGuard guard(problem.device.index);
  const Implementation& other = backward_implementation(problem);
  int processors = 1;
  check_call(
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, problem.device.index),
      "cudaDeviceGetAttribute");
  return std::make_shared<Prepared>(
      Prepared{.shape = *shape_of(problem),
               .processors = processors,
               .q_blocks = DeviceTable<DeviceBlock>(device_blocks(problem.layout)),
               .k_blocks = DeviceTable<DeviceBlock>(device_blocks(problem.keys())),
               .backward = {.problem = problem,
                            .options = {},
                            .implementation = &other,
                            .prepared = other.prepare(problem)}});
}

void forward(const PlanData& data, const ForwardInputs& inputs, const ForwardOutputs& outputs,
             const Workspace&, Stream stream) {
  const DeviceGuard guard(data.problem.device.index);
  const auto& prepared = *static_cast<const Prepared*>(data.prepared.get());
  const Problem& problem = data.problem;
  const TensorView& mixing = inputs.mixing;
  const FusedArgs args{.q_table = prepared.q_blocks.data(),
                       .k_table = prepared.k_blocks.data(),
                       .q_blocks = prepared.q_blocks.size(),
                       .k_blocks = prepared.k_blocks.size(),
                       .q_tokens = static_cast<int>(problem.layout.max_block_tokens()),
                       .k_tokens = static_cast<int>(problem.keys().max_block_tokens()),
                       .items = static_cast<int>(problem.batch * problem.heads),
                       .heads = static_cast<int>(problem.heads),
                       .dk = static_cast<int>(problem.dk),
                       .dv = static_cast<int>(problem.dv),
                       .map = feature_map(problem.feature_map, problem.dtype),
                       .scale = static_cast<float>(problem.scale),
                       .eps = static_cast<float>(problem.denominator_eps()),
                       .normalize = problem.normalizer == Normalizer::exact,
                       .mixing = static_cast<const float*>(mixing.data),
                       .mixing_head_stride = problem.mixing_per_head ? mixing.strides[0] : 0,
                       .mixing_row_stride = mixing.strides[mixing.rank - 2],
                       .q = row_tensor(inputs.q),
                       .k = row_tensor(inputs.k),
                       .v = row_tensor(inputs.v),
                       .o = row_tensor(outputs.o)};
  const Shape& shape = prepared.shape;
  // Rows must start on 16 bytes, and offsets inside a head must fit 32 bits.
  const auto narrow = [](const RowTensor& tensor, std::int64_t tokens) {
    return tensor.vectors && tensor.token_stride * tokens < (std::int64_t{1} << 31);
  };
  const std::int64_t nq = problem.layout.tokens(), nk = problem.keys().tokens();
  const bool regular = shape.regular && narrow(args.q, nq) && narrow(args.k, nk) &&
                       narrow(args.v, nk) && narrow(args.o, nq);
  launch_fused(
      {.width = shape.width,
       .padded_blocks = shape.padded_blocks,
       .regular = regular,
       .warps = shape.warps,
       .grid = std::min(args.items, prepared.processors),
       .shared_bytes = fused_bytes(shape.width, shape.padded_blocks, shape.warps, shape.offsets),
       .stream = stream},
      args);
}

void backward(const PlanData& data, const BackwardInputs& inputs, const BackwardOutputs& outputs,
              const Workspace& workspace, Stream stream) {
  const auto& prepared = *static_cast<const Prepared*>(data.prepared.get());
  prepared.backward.implementation->backward(prepared.backward, inputs, outputs, workspace, stream);
}

constexpr Implementation kFused{.name = "cuda.fused",
                                .refuses = refuses,
                                .predict_seconds = predict_seconds,
                                .forward_workspace = forward_workspace,
                                .backward_workspace = backward_workspace,
                                .forward = forward,
                                .backward = backward,
                                .prepare = prepare};

}  // namespace

const Implementation& fused_implementation() { return kFused; }

}  // namespace mhla::cuda
