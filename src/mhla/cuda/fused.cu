// The implementation "cuda.fused": the linear form of one head on chip. Blocks of 64 tokens go
// through a cluster of thread blocks, other blocks and the forward of width 64 through one. What
// is not served on chip goes through "cuda.dense" or "cuda.linear".
#include <algorithm>
#include <cmath>

#include "mhla/core/cost.h"
#include "mhla/cuda/arguments.h"
#include "mhla/cuda/implementations.h"
#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/fused_args.h"
#include "mhla/cuda/sm90/fused_maps.h"
#include "mhla/cuda/sm90/shared_rows.h"

namespace mhla::cuda {
namespace {

using namespace sm90;

constexpr int kSharedLimit = 227 * 1024;  // of a thread block on sm_90
constexpr int kMostProcessors = 160;      // bounds the workspace

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

// Both layouts as boxes of 64 tokens, and how a cluster shares their blocks.
struct BoxPlan {
  BoxGrid q, k;
  int width, most_blocks, padded_blocks;
  struct Way {
    int size;          // thread blocks of a cluster; 0 when there is no kernel
    int clusters = 0;  // that the device runs side by side
  };
  Way forward, backward;
};

// All but what depends on the device.
std::optional<BoxPlan> box_plan(const Problem& problem) {
  const auto q = box_grid(problem.layout), k = box_grid(problem.keys());
  if (!q || !k || problem.dk != problem.dv) return std::nullopt;
  if (problem.dk != 32 && problem.dk != 64 && problem.dk != 96) return std::nullopt;
  // NOTE: at width 96 a mixture takes the place of the block's own summary.
  if (problem.dk == 96 && q->blocks != k->blocks) return std::nullopt;
  const int width = static_cast<int>(problem.dk), most = std::max(q->blocks, k->blocks);
  const int forward = box_cluster(width, most, false), backward = box_cluster(width, most, true);
  if (forward == 0 && backward == 0) return std::nullopt;
  // Numbers of heads run a few clusters past the last.
  if (problem.batch * problem.heads > 0x7fffffff - 16 * kMostClusters) return std::nullopt;
  return BoxPlan{.q = *q,
                 .k = *k,
                 .width = width,
                 .most_blocks = most,
                 .padded_blocks = box_padded_blocks(width, most),
                 .forward = {.size = forward},
                 .backward = {.size = backward}};
}

struct Prepared {
  std::optional<Shape> shape;  // of the forward in one thread block
  std::optional<BoxPlan> boxes;
  int processors = 1;
  DeviceTable<DeviceBlock> q_blocks, k_blocks;
  PlanData other;              // the plan of the implementation that serves what this one does not
  bool makes_factors = false;  // of shared_position, in the forward
  SharedRowsPlan rows = {};
  DeviceTable<int> row_tokens = {};
};

bool has_shared_rows(const Problem& problem) {
  return problem.normalizer == Normalizer::shared_position;
}
bool has_box_forward(const Problem& problem) {
  const auto boxes = box_plan(problem);
  return boxes && boxes->forward.size > 0;
}

std::optional<std::string> refuses(const Problem& problem) {
  if (auto reason = device_refuses(problem.device, 90)) return reason;
  if (problem.dtype != DType::bf16) return "summaries are kept in bf16, so inputs must be";
  if (problem.mask != Mask::none) return "mask none only";
  if (problem.separate_denominator) return "the denominator reads the numerator's q and k";
  if (problem.layout.sequences().size() > 1) return "one sequence per batch entry only";
  if (!shape_of(problem) && !has_box_forward(problem)) {
    return "the summaries of a head do not fit shared memory";
  }
  if (has_shared_rows(problem)) {
    const auto boxes = box_plan(problem);
    if (!boxes || boxes->backward.size == 0 || problem.mixing_per_head ||
        !shared_rows_fit(problem)) {
      return "has shared_position for blocks of 64 tokens and one mixing matrix only";
    }
  }
  if (problem.layout.tokens() > 0x7fffffff || problem.keys().tokens() > 0x7fffffff ||
      problem.batch * problem.heads > 0x7fffffff) {
    return "token and head numbers are 32 bits wide";
  }
  // Tensors that the copy engine cannot address go backward through one of the others.
  return dense_implementation().refuses(problem) ? linear_implementation().refuses(problem)
                                                 : std::nullopt;
}

// Whether the forward makes the row factors of shared_position itself.
bool makes_factors(const Problem& problem) {
  const auto shape = shape_of(problem);
  return shape && shape->regular && fused_products_exist(shape->width, shape->padded_blocks) &&
         fused_bytes(shape->width, shape->padded_blocks, shape->warps, shape->offsets) +
                 fused_products_bytes(shape->padded_blocks) <=
             kSharedLimit;
}

// The bandwidths are what the kernels reached on an H200 (docs/kernels/fused.md); narrow rows cost
// more instructions a byte. Without clusters a multiprocessor takes one head at a time: whole
// waves; at width 96 a cluster does, and blocks that are missing save no time.
double predict_seconds(const Problem& problem, const PlanOptions&) {
  constexpr double kProcessors = 132, kLaunch = 4e-6, kClusterRate = 2.1e12;
  constexpr double kWideClusters = 32, kWideHead = 10.4e-6;
  const double bytes = linear_cost(problem).forward_bytes;
  // The factors of shared_position: a kernel of their own, or q read twice.
  const double rows = !has_shared_rows(problem) ? 0
                      : !makes_factors(problem) ? shared_rows_seconds(problem)
                                                : shared_rows_seconds(problem) / 2;
  const double heads = static_cast<double>(problem.batch * problem.heads);
  if (problem.dk == 96) return kLaunch + rows + std::ceil(heads / kWideClusters) * kWideHead;
  if (has_box_forward(problem)) return kLaunch + rows + bytes / kClusterRate;
  const double bandwidth = shape_of(problem)->width == 32 ? 2.1e12 : 2.8e12;
  const double waves = std::max(1.0, std::ceil(heads / kProcessors));
  return kLaunch + rows + waves * bytes / std::max(heads, 1.0) * kProcessors / bandwidth;
}

// Which of the others does what is not done on chip: the one that would go forward faster. Where
// the clusters go backward and the other one is for tensors they cannot address, its workspace
// counts more than its time: every plan has it.
const Implementation& other_implementation(const Problem& problem) {
  const Implementation &dense = dense_implementation(), &linear = linear_implementation();
  if (dense.refuses(problem)) return linear;
  const auto boxes = box_plan(problem);
  const double patience = boxes && boxes->backward.size > 0 ? 5 : 1;
  return dense.predict_seconds(problem, {}) < patience * linear.predict_seconds(problem, {})
             ? dense
             : linear;
}

// With shared_position the row factors. Memory of the other implementation, with it for rows that
// are not made of 16-byte chunks, without a kernel in one thread block for tensors that the copy
// engine cannot address.
std::size_t forward_workspace(const Problem& problem, const PlanOptions& options) {
  if (!has_shared_rows(problem) && shape_of(problem)) return 0;
  const std::size_t other = other_implementation(problem).forward_workspace(problem, options);
  return has_shared_rows(problem) ? std::max(shared_rows_bytes(problem), other) : other;
}
// Partial sums of the weights' gradient, of the row factors' thread blocks behind those of the
// clusters, and the row factors; memory of the other implementation for tensors that the copy
// engine cannot address.
std::size_t backward_workspace(const Problem& problem, const PlanOptions& options) {
  const std::size_t other = other_implementation(problem).backward_workspace(problem, options);
  const auto boxes = box_plan(problem);
  if (!boxes) return other;
  const auto matrix = static_cast<std::size_t>(boxes->padded_blocks) * boxes->padded_blocks;
  std::int64_t clusters = problem.batch * problem.heads;
  if (!problem.mixing_per_head) clusters = std::min<std::int64_t>(clusters, kMostClusters);
  clusters *= boxes->backward.size;
  std::size_t rows = 0;
  if (has_shared_rows(problem)) {
    clusters += shared_rows_grid(problem, kMostProcessors);
    rows = 2 * shared_rows_bytes(problem);
  }
  return std::max(other, rows + static_cast<std::size_t>(clusters) * matrix * sizeof(float));
}

std::shared_ptr<const void> prepare(const Problem& problem) {
  const bool shared = has_shared_rows(problem);
  const DeviceGuard guard(problem.device.index);
  const Implementation& other = other_implementation(problem);
  const int processors = multiprocessors(problem.device.index);
  auto boxes = box_plan(problem);
  if (boxes) {
    const auto measure = [&](BoxPlan::Way& way, bool backward) {
      if (way.size == 0) return;
      way.clusters = box_active_clusters(boxes->width, boxes->most_blocks, backward, shared);
    };
    measure(boxes->forward, false);
    measure(boxes->backward, true);
  }
  // NOTE: made first; gcc 12 warns of half-made plans when the initialiser itself can throw.
  std::shared_ptr<const void> other_prepared = other.prepare(problem);
  PlanData other_plan{.problem = problem, .options = {}, .implementation = &other};
  other_plan.prepared = std::move(other_prepared);
  SharedRowsPlan rows;
  if (shared) rows = shared_rows_plan(problem, std::min(processors, kMostProcessors));
  DeviceTable<int> row_tokens(rows.tokens);
  return std::make_shared<Prepared>(
      Prepared{.shape = shape_of(problem),
               .boxes = std::move(boxes),
               .processors = processors,
               .q_blocks = DeviceTable<DeviceBlock>(device_blocks(problem.layout)),
               .k_blocks = DeviceTable<DeviceBlock>(device_blocks(problem.keys())),
               .other = std::move(other_plan),
               .makes_factors = shared && makes_factors(problem),
               .rows = std::move(rows),
               .row_tokens = std::move(row_tokens)});
}

bool have_tensor_maps(std::initializer_list<TensorView> views) {
  return std::all_of(views.begin(), views.end(), [](const TensorView& view) {
    return !view.defined() || (view.size() > 0 && has_tensor_map(view));
  });
}

// What forward and backward of the cluster kernels share.
BoxArgs box_args(const Problem& problem, const BoxPlan& plan, const BoxPlan::Way& way,
                 const TensorView& mixing) {
  BoxArgs args{};
  args.q_grid = plan.q;
  args.k_grid = plan.k;
  args.items = static_cast<int>(problem.batch * problem.heads);
  args.heads = static_cast<int>(problem.heads);
  args.slots = (plan.most_blocks + way.size - 1) / way.size;
  args.slots_inverse = box_inverse(args.slots);
  args.map = feature_map(problem.feature_map, problem.dtype);
  args.scale = static_cast<float>(problem.scale);
  args.eps = static_cast<float>(problem.denominator_eps());
  args.normalize = problem.normalizer == Normalizer::exact;
  args.mixing = static_cast<const float*>(mixing.data);
  args.mixing_head_stride = problem.mixing_per_head ? mixing.strides[0] : 0;
  args.mixing_row_stride = mixing.strides[mixing.rank - 2];
  return args;
}
BoxLaunch box_launch(const BoxArgs& args, const BoxPlan& plan, bool backward, Stream stream) {
  return {.width = plan.width,
          .blocks = plan.most_blocks,
          .backward = backward,
          .shared = args.factor != nullptr,
          .clusters = std::min(args.items, (backward ? plan.backward : plan.forward).clusters),
          .stream = stream};
}

void box_forward(const Problem& problem, const BoxPlan& plan, const ForwardInputs& inputs,
                 const ForwardOutputs& outputs, const float* factor, Stream stream) {
  BoxArgs args = box_args(problem, plan, plan.forward, inputs.mixing);
  args.factor = factor;
  args.row_stride = static_cast<int>(problem.layout.tokens());
  args.q = tensor_map(inputs.q, problem.layout);
  args.k = tensor_map(inputs.k, problem.keys());
  args.v = tensor_map(inputs.v, problem.keys());
  args.o = tensor_map(outputs.o, problem.layout);
  launch_boxes(box_launch(args, plan, false, stream), args);
}

void box_backward(const Problem& problem, const Prepared& prepared, const BackwardInputs& inputs,
                  const BackwardOutputs& outputs, const Workspace& workspace, Stream stream) {
  const BoxPlan& plan = *prepared.boxes;
  const bool shared = has_shared_rows(problem);
  BoxArgs args = box_args(problem, plan, plan.backward, inputs.mixing);
  auto* base = static_cast<unsigned char*>(workspace.data);
  SharedRowsArgs rows{};
  const std::size_t row_bytes = shared ? shared_rows_bytes(problem) : 0;
  if (shared) {
    rows = shared_rows_args(problem, prepared.rows, prepared.row_tokens.data(), inputs.mixing);
    rows.q = row_tensor(inputs.q);
    rows.k = row_tensor(inputs.k);
    rows.o = row_tensor(inputs.o);
    rows.d_o = row_tensor(inputs.d_o);
    rows.factor = reinterpret_cast<float*>(base);
    rows.gradient = reinterpret_cast<float*>(base + row_bytes);
    args.factor = rows.factor;
    args.gradient = rows.gradient;
    args.row_stride = rows.row_stride;
  }
  const auto output = [](TensorMap& map, int& has, const TensorView& view,
                         const BlockLayout& layout) {
    has = view.defined();
    if (has) map = tensor_map(view, layout);
  };
  args.q = tensor_map(inputs.q, problem.layout);
  args.k = tensor_map(inputs.k, problem.keys());
  args.v = tensor_map(inputs.v, problem.keys());
  args.d_o = tensor_map(inputs.d_o, problem.layout);
  output(args.d_q, args.has_d_q, outputs.d_q, problem.layout);
  output(args.d_k, args.has_d_k, outputs.d_k, problem.keys());
  output(args.d_v, args.has_d_v, outputs.d_v, problem.keys());
  const TensorView& d_mixing = outputs.d_mixing;
  args.partial = d_mixing.defined() ? reinterpret_cast<float*>(base + 2 * row_bytes) : nullptr;
  args.per_head = problem.mixing_per_head;
  const BoxLaunch launch = box_launch(args, plan, true, stream);
  if (shared) {
    const int matrix = plan.padded_blocks * plan.padded_blocks;
    if (args.partial != nullptr) {
      rows.sums = args.partial + launch.clusters * plan.backward.size * matrix;
      rows.sums_size = matrix;
      rows.sums_row_stride = plan.padded_blocks;
      rows.sums_column_stride = 1;
    }
    launch_shared_rows(problem.dtype, true, prepared.rows.grid, rows, stream);
  }
  launch_boxes(launch, args);
  if (!d_mixing.defined()) return;
  const int rank = d_mixing.rank;
  const std::int64_t sums = problem.mixing_per_head ? problem.batch : launch.clusters;
  launch_box_reduce(
      {.partial = args.partial,
       .splits = static_cast<int>(sums * plan.backward.size) + (shared ? prepared.rows.grid : 0),
       .matrices = problem.mixing_per_head ? args.heads : 1,
       .padded = plan.padded_blocks,
       .q_blocks = plan.q.blocks,
       .k_blocks = plan.k.blocks,
       .rows = static_cast<int>(d_mixing.shape[rank - 2]),
       .cols = static_cast<int>(d_mixing.shape[rank - 1]),
       .d_mixing = static_cast<float*>(d_mixing.data),
       .head_stride = rank == 3 ? d_mixing.strides[0] : 0,
       .row_stride = d_mixing.strides[rank - 2],
       .col_stride = d_mixing.strides[rank - 1]},
      stream);
}

void forward(const PlanData& data, const ForwardInputs& inputs, const ForwardOutputs& outputs,
             const Workspace& workspace, Stream stream) {
  const DeviceGuard guard(data.problem.device.index);
  const auto& prepared = *static_cast<const Prepared*>(data.prepared.get());
  const Problem& problem = data.problem;
  const bool shared = has_shared_rows(problem);
  const PlanData& other = prepared.other;
  if (shared && !(row_tensor(inputs.q).vectors && row_tensor(inputs.k).vectors)) {
    return other.implementation->forward(other, inputs, outputs, workspace, stream);
  }
  const auto row_factors = [&]() -> const float* {
    if (!shared) return nullptr;
    SharedRowsArgs rows = shared_rows_args(problem, prepared.rows, prepared.row_tokens.data(),
                                           inputs.mixing);
    rows.q = row_tensor(inputs.q);
    rows.k = row_tensor(inputs.k);
    rows.factor = static_cast<float*>(workspace.data);
    launch_shared_rows(problem.dtype, false, prepared.rows.grid, rows, stream);
    return rows.factor;
  };
  if (prepared.boxes && prepared.boxes->forward.size > 0 &&
      have_tensor_maps({inputs.q, inputs.k, inputs.v, outputs.o})) {
    return box_forward(problem, *prepared.boxes, inputs, outputs, row_factors(), stream);
  }
  if (!prepared.shape) {
    return other.implementation->forward(other, inputs, outputs, workspace, stream);
  }
  const TensorView& mixing = inputs.mixing;
  FusedArgs args{.q_table = prepared.q_blocks.data(),
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
                 .o = row_tensor(outputs.o),
                 .factor = nullptr,
                 .row_stride = static_cast<int>(problem.layout.tokens())};
  const Shape& shape = *prepared.shape;
  // Rows must start on 16 bytes, and offsets inside a head must fit 32 bits.
  const auto narrow = [](const RowTensor& tensor, std::int64_t tokens) {
    return tensor.vectors && tensor.token_stride * tokens < (std::int64_t{1} << 31);
  };
  const std::int64_t nq = problem.layout.tokens(), nk = problem.keys().tokens();
  const bool regular = shape.regular && narrow(args.q, nq) && narrow(args.k, nk) &&
                       narrow(args.v, nk) && narrow(args.o, nq);
  const bool products = regular && prepared.makes_factors;
  if (!products) args.factor = row_factors();
  launch_fused(
      {.width = shape.width,
       .padded_blocks = shape.padded_blocks,
       .regular = regular,
       .products = products,
       .warps = shape.warps,
       .grid = std::min(args.items, prepared.processors),
       .shared_bytes = fused_bytes(shape.width, shape.padded_blocks, shape.warps, shape.offsets) +
                       (products ? fused_products_bytes(shape.padded_blocks) : 0),
       .stream = stream},
      args);
}

void backward(const PlanData& data, const BackwardInputs& inputs, const BackwardOutputs& outputs,
              const Workspace& workspace, Stream stream) {
  const DeviceGuard guard(data.problem.device.index);
  const auto& prepared = *static_cast<const Prepared*>(data.prepared.get());
  const bool rows = !has_shared_rows(data.problem) || row_tensor(inputs.o).vectors;
  if (prepared.boxes && prepared.boxes->backward.size > 0 && rows &&
      have_tensor_maps(
          {inputs.q, inputs.k, inputs.v, inputs.d_o, outputs.d_q, outputs.d_k, outputs.d_v})) {
    return box_backward(data.problem, prepared, inputs, outputs, workspace, stream);
  }
  prepared.other.implementation->backward(prepared.other, inputs, outputs, workspace, stream);
}

std::string kernels(const Problem& problem) {
  const auto boxes = box_plan(problem);
  std::string text = !has_box_forward(problem) ? "forward in one thread block (fused_forward)"
                     : boxes->width == 96      ? "forward in a cluster (fused_slot_forward)"
                                               : "forward in a cluster (fused_box_forward)";
  text += boxes && boxes->width == 96 ? ", backward in a cluster (fused_slot_backward)"
          : boxes && boxes->backward.size > 0
              ? ", backward in a cluster (fused_box_backward)"
              : std::string(", backward of ") + other_implementation(problem).name;
  if (!has_shared_rows(problem)) return text;
  text += makes_factors(problem) ? ", row factors in the forward and ahead of the backward"
                                 : ", row factors ahead of both";
  text += " (shared_rows)";
  return text;
}

constexpr Implementation kFused{.name = "cuda.fused",
                                .refuses = refuses,
                                .predict_seconds = predict_seconds,
                                .forward_workspace = forward_workspace,
                                .backward_workspace = backward_workspace,
                                .forward = forward,
                                .backward = backward,
                                .prepare = prepare,
                                .kernels = kernels};

}  // namespace

const Implementation& fused_implementation() { return kFused; }

}  // namespace mhla::cuda
