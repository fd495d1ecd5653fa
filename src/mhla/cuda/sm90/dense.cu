// The implementation "cuda.dense": scores in tiles on the chip, for short sequences on Hopper.
#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "mhla/core/cost.h"
#include "mhla/cuda/arguments.h"
#include "mhla/cuda/implementations.h"
#include "mhla/cuda/sm90/dense_plan.h"
#include "mhla/cuda/sm90/dense_position.h"
#include "mhla/cuda/sm90/dense_short.h"
#include "mhla/cuda/sm90/dense_whole.h"
#include "mhla/cuda/sm90/shared_rows.h"
#include "mhla/token_maps.h"

namespace mhla::cuda {
namespace {

using namespace sm90;

// The whole-head backward, for problems that it serves.
struct PreparedWhole {
  explicit PreparedWhole(const WholePlan& plan)
      : plan(plan), table({plan.table}), key_slots(plan.key_slots), offsets(plan.block_offsets) {}

  WholePlan plan;
  DeviceTable<WholeTable> table;
  DeviceTable<int> key_slots, offsets;
};

struct PreparedShort {
  int width;
  ShortArgs args;
};

// The shared_position normaliser: row factors, and whoever takes tensors that the kernels of whole
// heads do not.
struct PreparedShared {
  SharedRowsPlan plan;
  DeviceTable<int> tokens;
  bool in_kernel;  // the forward makes the row factors itself
  PlanData other;
};

struct Prepared {
  DensePlan plan;
  DenseTables tables;
  std::optional<PreparedWhole> whole;
  std::optional<PreparedShort> forward;
  std::optional<PreparedShared> shared;
  std::optional<PositionArgs> positions;
};

bool has_shared_rows(const Problem& problem) {
  return problem.normalizer == Normalizer::shared_position;
}

std::optional<std::string> refuses(const Problem& problem) {
  if (auto reason = dense_refuses(problem)) return reason;
  if (!has_shared_rows(problem)) return std::nullopt;
  if (short_width(problem) == 0 || !whole_plan(problem, dense_plan(problem).processors) ||
      !shared_rows_fit(problem)) {
    return "has shared_position for whole heads of 129 to 256 tokens only, in at most 16 blocks "
           "(each "
           "counted in rows of 16), dk and dv up to 96 and one of them past 32, one mixing matrix "
           "and "
           "no causal mask";
  }
  return linear_implementation().refuses(problem);
}

std::size_t align(std::size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}
std::size_t factor_bytes(const Problem& problem, const DensePlan& plan) {
  return align(static_cast<std::size_t>(plan.pairs * problem.layout.tokens()) * sizeof(RowFactor));
}

// Everything a kernel reads that does not depend on which gradient it computes.
DenseArgs common_args(const PlanData& data, DenseKernel kernel, const TensorView& mixing) {
  const Prepared& prepared = *static_cast<const Prepared*>(data.prepared.get());
  const DensePlan& plan = prepared.plan;
  const DenseTables& tables = prepared.tables;
  const Problem& problem = data.problem;
  const DenseStage& stage = plan.stage(kernel);
  const bool transposed = kernel == DenseKernel::d_key;
  const int head = mixing.rank - 3, row = mixing.rank - 2, column = mixing.rank - 1;
  DenseArgs args{};
  args.groups = tables.groups[static_cast<int>(kernel)].data();
  args.row_block = (transposed ? tables.key_block : tables.query_block).data();
  args.column_block = (transposed ? tables.query_block : tables.key_block).data();
  args.row_order = (transposed ? tables.key_order : tables.query_order).data();
  args.column_order = (transposed ? tables.query_order : tables.key_order).data();
  args.groups_count = static_cast<int>(stage.groups.size());
  args.items = static_cast<int>(plan.items(kernel));
  args.heads = static_cast<int>(problem.heads);
  args.dk = static_cast<int>(problem.dk);
  args.dv = static_cast<int>(problem.dv);
  args.feature = static_cast<Feature>(problem.feature_map);
  args.seen = problem.mask == Mask::none     ? Seen::all
              : problem.mask == Mask::causal ? Seen::tokens_before
                                             : Seen::blocks_before;
  args.normalize = problem.normalizer == Normalizer::exact;
  args.scale = static_cast<float>(problem.scale);
  args.eps = static_cast<float>(problem.denominator_eps());
  args.mixing = static_cast<const float*>(mixing.data);
  args.mixing_head_stride = head < 0 ? 0 : mixing.strides[head];
  args.mixing_row_stride = static_cast<int>(mixing.strides[transposed ? column : row]);
  args.mixing_column_stride = static_cast<int>(mixing.strides[transposed ? row : column]);
  args.row_blocks = static_cast<int>((transposed ? problem.keys() : problem.layout).mixing_size());
  args.column_blocks = static_cast<int>(
      (transposed ? problem.layout : problem.keys()).mixing_size());
  args.slots = stage.slots;
  args.row_buffers = stage.row_buffers;
  args.slot_bytes = stage.slot_bytes;
  args.tables = stage.tables;
  args.table_bytes = stage.table_bytes;
  args.tables_stay = stage.tables_stay;
  args.resident = stage.resident;
  return args;
}

void run(const PlanData& data, DenseKernel kernel, const DenseArgs& args, Stream stream) {
  const DensePlan& plan = static_cast<const Prepared*>(data.prepared.get())->plan;
  if (plan.items(kernel) == 0) return;
  const DenseLaunch launch{.width = plan.width,
                           .mixing_blocks = plan.mixing_blocks,
                           .grid = plan.grid(kernel),
                           .shared_bytes = plan.stage(kernel).shared_bytes,
                           .stream = stream};
  launch_dense(data.problem.dtype, kernel, launch, args);
}

// False where the kernel for short sequences does not serve these tensors.
bool run_short(const PlanData& data, const ForwardInputs& inputs, const ForwardOutputs& outputs,
               const DenseArgs& dense, const Workspace& workspace, Stream stream) {
  const auto& prepared = *static_cast<const Prepared*>(data.prepared.get());
  const auto& served = prepared.forward;
  if (!served) return false;
  ShortArgs args = served->args;
  if (args.items == 0) return true;
  if (!short_tensors(args, served->width, inputs, outputs.o)) return false;
  args.dense = dense;
  if (prepared.shared && prepared.shared->in_kernel) {
    args.tokens = prepared.shared->tokens.data();
    args.positions = prepared.shared->plan.positions;
  } else if (prepared.shared) {
    const PreparedShared& shared = *prepared.shared;
    SharedRowsArgs rows = shared_rows_args(data.problem, shared.plan, shared.tokens.data(),
                                           inputs.mixing);
    rows.q = dense.row_x;
    rows.k = dense.column_x;
    rows.factor = static_cast<float*>(workspace.data);
    args.factor = rows.factor;
    launch_shared_rows(data.problem.dtype, false, shared.plan.grid, rows, stream);
  }
  launch_dense_short(data.problem.dtype, served->width, args, stream);
  return true;
}

// The forward by positions; false where it does not serve these tensors.
bool run_positions(const PlanData& data, const ForwardInputs& inputs, const ForwardOutputs& outputs,
                   const DenseArgs& dense, Stream stream) {
  const auto& served = static_cast<const Prepared*>(data.prepared.get())->positions;
  if (!served) return false;
  PositionArgs args = *served;
  if (args.items == 0) return true;
  if (!position_tensors(args, inputs, outputs.o)) return false;
  args.dense = dense;
  args.narrow_mixing = inputs.mixing.dtype == DType::f32 ? nullptr : inputs.mixing.data;
  args.tap_weight = inputs.local.weight.data;
  args.tap_bias = inputs.local.bias.data;
  launch_dense_position(data.problem.dtype, has_shared_rows(data.problem), args, stream);
  return true;
}

// Only the forward by positions reads a 16-bit matrix.
bool reads_narrow_mixing(const PlanData& data, const ForwardInputs& inputs,
                         const ForwardOutputs& outputs) {
  const auto& served = static_cast<const Prepared*>(data.prepared.get())->positions;
  if (!served) return false;
  PositionArgs args = *served;
  return args.items == 0 || position_tensors(args, inputs, outputs.o);
}

// The local term after kernels that lack it, in place. Asked for before these run: it may demand
// more of the tensors than they do.
std::optional<GridConvolution> local_term(const Problem& problem, const ForwardInputs& inputs,
                                          const TensorView& o) {
  if (!inputs.local.weight.defined()) return std::nullopt;
  const auto& grid = problem.layout.sequences().front().grid;
  GridConvolution call{.input = inputs.v,
                       .output = o,
                       .addend = o,
                       .weight = inputs.local.weight,
                       .bias = inputs.local.bias,
                       .grid = {1, grid[0], grid[1]},
                       .kernel = inputs.local.kernel};
  if (const std::string why = refusal(call); !why.empty()) {
    fail(ErrorCode::unsupported, "forward", "local: ", why);
  }
  return call;
}

// Score products over the rate measured at 256 tokens on an H200, or traffic over the bandwidth
// seen there, on as many multiprocessors as have work.
double predict_seconds(const Problem& problem, const PlanOptions&) {
  const bool brief = short_width(problem) > 0;
  const double rate = brief ? 400e12 : 230e12, bandwidth = brief ? 3.4e12 : 1.8e12;
  constexpr double kLaunch = 4e-6;
  const DensePlan plan = dense_plan(problem);
  double scores = 0;  // padded to tiles
  for (const DenseGroup& group : plan.stage(DenseKernel::forward).groups) {
    const auto padded = [](int n) { return static_cast<double>((n + kTile - 1) / kTile * kTile); };
    scores += padded(group.rows) * (brief ? kShortKeys : padded(group.columns));
  }
  const double flops = 4.0 * scores * static_cast<double>(plan.pairs) * plan.width;
  const double busy = static_cast<double>(std::max(plan.grid(DenseKernel::forward), 1)) /
                      static_cast<double>(plan.processors);
  const double seconds = std::max(flops / rate, linear_cost(problem).forward_bytes / bandwidth) /
                         busy;
  return seconds + kLaunch +
         (has_shared_rows(problem) && !short_makes_factors(problem, plan.processors)
              ? shared_rows_seconds(problem)
              : 0);
}

std::size_t forward_workspace(const Problem& problem, const PlanOptions& options) {
  if (!has_shared_rows(problem)) return 0;
  return std::max(shared_rows_bytes(problem),
                  linear_implementation().forward_workspace(problem, options));
}

// The sums of d_mixing of every thread block: those of the whole-head backward, then those of the
// row factors.
std::size_t whole_sums_bytes(int thread_blocks) {
  return static_cast<std::size_t>(thread_blocks) * kWholeSlots * kWholeSlots * sizeof(float);
}

std::size_t backward_workspace(const Problem& problem, const PlanOptions& options) {
  const DensePlan plan = dense_plan(problem);
  if (has_shared_rows(problem)) {
    const int grids = plan.processors + shared_rows_grid(problem, plan.processors);
    return std::max(2 * shared_rows_bytes(problem) + whole_sums_bytes(grids),
                    linear_implementation().backward_workspace(problem, options));
  }
  const std::size_t whole = whole_sums_bytes(plan.processors);
  const std::size_t general = factor_bytes(problem, plan) +
                              align(static_cast<std::size_t>(plan.sum_slots(problem) *
                                                             problem.keys().tokens() *
                                                             plan.mixing_blocks) *
                                    sizeof(float));
  return whole_plan(problem, plan.processors) ? std::max(whole, general) : general;
}

std::shared_ptr<const void> prepare(const Problem& problem) {
  const DeviceGuard guard(problem.device.index);
  DensePlan plan = dense_plan(problem);
  DenseTables tables(problem, plan);
  std::optional<PreparedWhole> whole;
  if (const auto served = whole_plan(problem, plan.processors)) whole.emplace(*served);
  std::optional<PreparedShort> forward;
  if (const int width = short_width(problem)) {
    forward = {.width = width, .args = short_args(problem, plan.processors)};
  }
  std::optional<PreparedShared> shared;
  if (has_shared_rows(problem)) {
    // NOTE: made first; gcc 12 warns of half-made plans when the initialiser itself can throw.
    const Implementation& linear = linear_implementation();
    std::shared_ptr<const void> linear_prepared = linear.prepare(problem);
    SharedRowsPlan rows = shared_rows_plan(problem, plan.processors);
    DeviceTable<int> tokens(rows.tokens);
    PlanData other{.problem = problem, .options = {}, .implementation = &linear};
    other.prepared = std::move(linear_prepared);
    const bool in_kernel = short_makes_factors(problem, plan.processors);
    shared = PreparedShared{std::move(rows), std::move(tokens), in_kernel, std::move(other)};
  }
  std::optional<PositionArgs> positions;
  if (serves_positions(problem)) positions = position_args(problem, plan.processors);
  return std::make_shared<Prepared>(Prepared{std::move(plan), std::move(tables), std::move(whole),
                                             std::move(forward), std::move(shared),
                                             std::move(positions)});
}

void forward(const PlanData& data, const ForwardInputs& inputs, const ForwardOutputs& outputs,
             const Workspace& workspace, Stream stream) {
  const DeviceGuard guard(data.problem.device.index);
  const auto& shared = static_cast<const Prepared*>(data.prepared.get())->shared;
  DenseArgs args = common_args(data, DenseKernel::forward, inputs.mixing);
  args.row_x = row_tensor(inputs.q);
  args.column_x = row_tensor(inputs.k);
  args.column_z = row_tensor(inputs.v);
  args.out_z = row_tensor(outputs.o);
  if (run_positions(data, inputs, outputs, args, stream)) return;
  if (inputs.mixing.dtype != DType::f32) {
    fail(ErrorCode::unsupported, "forward", "mixing: expected f32 beside these q, k, v and o, got ",
         name(inputs.mixing.dtype), " (ask Plan::reads_narrow_mixing)");
  }
  const auto local = local_term(data.problem, inputs, outputs.o);
  if (!run_short(data, inputs, outputs, args, workspace, stream)) {
    if (shared) {
      shared->other.implementation->forward(shared->other, inputs, outputs, workspace, stream);
    } else {
      run(data, DenseKernel::forward, args, stream);
    }
  }
  if (local) grid_convolution(*local, stream);
}

// Where the sums of the mixing gradient lie, and what they are sums of.
struct MixingSums {
  const float* data;
  std::int64_t stride;
  int slots, mixing_blocks;
  const int *list, *offsets;
  Seen seen;
};

void reduce(const Problem& problem, const MixingSums& sums, const TensorView& d_mixing,
            Stream stream) {
  const int head = d_mixing.rank - 3, row = d_mixing.rank - 2, column = d_mixing.rank - 1;
  launch_dense_reduce({.sums = sums.data,
                       .sums_stride = sums.stride,
                       .slots = sums.slots,
                       .mixing_blocks = sums.mixing_blocks,
                       .heads = head < 0 ? 1 : static_cast<int>(problem.heads),
                       .token_list = sums.list,
                       .block_offsets = sums.offsets,
                       .query_blocks = static_cast<int>(problem.layout.mixing_size()),
                       .key_blocks = static_cast<int>(problem.keys().mixing_size()),
                       .seen = sums.seen,
                       .d_mixing = static_cast<float*>(d_mixing.data),
                       .head_stride = head < 0 ? 0 : d_mixing.strides[head],
                       .row_stride = d_mixing.strides[row],
                       .column_stride = d_mixing.strides[column],
                       .rows = static_cast<int>(d_mixing.shape[row]),
                       .columns = static_cast<int>(d_mixing.shape[column])},
                      stream);
}

// Returns false where rows of a tensor are not made of whole 16-byte chunks.
bool backward_whole(const PlanData& data, const PreparedWhole& whole, const BackwardInputs& inputs,
                    const BackwardOutputs& outputs, const Workspace& workspace, Stream stream) {
  const Problem& problem = data.problem;
  const auto& shared = static_cast<const Prepared*>(data.prepared.get())->shared;
  auto* base = static_cast<unsigned char*>(workspace.data);
  const std::size_t row_bytes = shared ? shared_rows_bytes(problem) : 0;
  auto* sums = reinterpret_cast<float*>(base + 2 * row_bytes);
  WholeArgs args{
      .table = whole.table.data(),
      .items = static_cast<int>(problem.batch * problem.heads),
      .heads = static_cast<int>(problem.heads),
      .dk = static_cast<int>(problem.dk),
      .dv = static_cast<int>(problem.dv),
      .feature = static_cast<Feature>(problem.feature_map),
      .blocks_before = problem.mask != Mask::none,
      .padded = whole.plan.padded,
      .normalize = problem.normalizer == Normalizer::exact,
      .scale = static_cast<float>(problem.scale),
      .eps = static_cast<float>(problem.denominator_eps()),
      .mixing = static_cast<const float*>(inputs.mixing.data),
      .mixing_row_stride = static_cast<int>(inputs.mixing.strides[inputs.mixing.rank - 2]),
      .mixing_column_stride = static_cast<int>(inputs.mixing.strides[inputs.mixing.rank - 1]),
      .q = row_tensor(inputs.q),
      .k = row_tensor(inputs.k),
      .v = row_tensor(inputs.v),
      .d_o = row_tensor(inputs.d_o),
      .d_q = row_tensor(outputs.d_q),
      .d_k = row_tensor(outputs.d_k),
      .d_v = row_tensor(outputs.d_v),
      .mixing_sums = outputs.d_mixing.defined() ? sums : nullptr,
      .row_factor = nullptr,
      .row_gradient = nullptr,
      .row_stride = static_cast<int>(problem.layout.tokens())};
  const RowTensor o = shared ? row_tensor(inputs.o) : RowTensor{};
  for (const RowTensor& tensor :
       {args.q, args.k, args.v, args.d_o, args.d_q, args.d_k, args.d_v, o}) {
    if (tensor.data != nullptr && !tensor.vectors) return false;
    if (tensor.token_stride > std::numeric_limits<int>::max() / 2) return false;  // in bytes
  }
  if (args.items == 0) return false;
  if (shared) {
    SharedRowsArgs rows = shared_rows_args(problem, shared->plan, shared->tokens.data(),
                                           inputs.mixing);
    rows.q = args.q;
    rows.k = args.k;
    rows.o = o;
    rows.d_o = args.d_o;
    rows.factor = reinterpret_cast<float*>(base);
    rows.gradient = reinterpret_cast<float*>(base + row_bytes);
    if (args.mixing_sums != nullptr) {
      rows.sums = sums + whole.plan.grid * kWholeSlots * kWholeSlots;
      rows.sums_size = kWholeSlots * kWholeSlots;
      rows.sums_row_stride = 1;
      rows.sums_column_stride = kWholeSlots;
      rows.sums_columns = whole.offsets.data();
    }
    args.row_factor = rows.factor;
    args.row_gradient = rows.gradient;
    launch_shared_rows(problem.dtype, true, shared->plan.grid, rows, stream);
  }
  launch_whole(problem.dtype, whole.plan.width, whole.plan.grid, args, stream);
  if (!outputs.d_mixing.defined()) return true;
  reduce(problem,
         {.data = sums,
          .stride = kWholeSlots * kWholeSlots,
          .slots = whole.plan.grid + (shared ? shared->plan.grid : 0),
          .mixing_blocks = kWholeSlots,
          .list = whole.key_slots.data(),
          .offsets = whole.offsets.data(),
          .seen = args.blocks_before ? Seen::blocks_before : Seen::all},
         outputs.d_mixing, stream);
  return true;
}

void backward(const PlanData& data, const BackwardInputs& inputs, const BackwardOutputs& outputs,
              const Workspace& workspace, Stream stream) {
  const DeviceGuard guard(data.problem.device.index);
  const Problem& problem = data.problem;
  const Prepared& prepared = *static_cast<const Prepared*>(data.prepared.get());
  const DensePlan& plan = prepared.plan;
  const DenseTables& tables = prepared.tables;
  const std::optional<PreparedWhole>& whole = prepared.whole;
  if (whole && backward_whole(data, *whole, inputs, outputs, workspace, stream)) return;
  if (const auto& shared = prepared.shared) {
    return shared->other.implementation->backward(shared->other, inputs, outputs, workspace,
                                                  stream);
  }
  auto* base = static_cast<unsigned char*>(workspace.data);

  DenseArgs query = common_args(data, DenseKernel::d_query, inputs.mixing);
  query.row_x = row_tensor(inputs.q);
  query.row_z = row_tensor(inputs.d_o);
  query.column_x = row_tensor(inputs.k);
  query.column_z = row_tensor(inputs.v);
  query.out_x = row_tensor(outputs.d_q);
  query.factors = reinterpret_cast<RowFactor*>(base);
  query.factor_stride = problem.layout.tokens();
  run(data, DenseKernel::d_query, query, stream);
  if (!outputs.d_k.defined() && !outputs.d_v.defined() && !outputs.d_mixing.defined()) return;

  DenseArgs key = common_args(data, DenseKernel::d_key, inputs.mixing);
  key.row_x = query.column_x;
  key.row_z = query.column_z;
  key.column_x = query.row_x;
  key.column_z = query.row_z;
  key.out_x = row_tensor(outputs.d_k);
  key.out_z = row_tensor(outputs.d_v);
  key.factors = query.factors;
  key.factor_stride = query.factor_stride;
  if (outputs.d_mixing.defined()) {
    key.mixing_sums = reinterpret_cast<float*>(base + factor_bytes(problem, plan));
    key.mixing_sums_stride = problem.keys().tokens() * plan.mixing_blocks;
    key.mixing_sums_by_head = plan.sums_by_head(problem);
  }
  run(data, DenseKernel::d_key, key, stream);
  if (!outputs.d_mixing.defined()) return;
  reduce(problem,
         {.data = key.mixing_sums,
          .stride = key.mixing_sums_stride,
          .slots = static_cast<int>(plan.sum_slots(problem)),
          .mixing_blocks = plan.mixing_blocks,
          .list = tables.key_list.data(),
          .offsets = tables.key_offsets.data(),
          .seen = key.seen},
         outputs.d_mixing, stream);
}

std::string kernels(const Problem& problem) {
  const DensePlan plan = dense_plan(problem);
  const bool positions = serves_positions(problem);
  std::string text = positions ? "forward of whole heads by positions where tensors allow "
                                 "(dense_position)"
                     : short_width(problem) > 0
                         ? "forward of whole heads by the copy engine where tensors allow "
                           "(dense_short)"
                         : "forward in tiles (dense_forward)";
  if (serves_local(problem, {1, 3, 3})) text += ", with a 3 x 3 local term if asked";
  text += whole_plan(problem, plan.processors) ? ", backward of whole heads (dense_whole)"
                                               : ", backward by queries and by keys";
  if (!has_shared_rows(problem)) return text;
  text += positions || short_makes_factors(problem, plan.processors)
              ? ", row factors in the forward and ahead of the backward (shared_rows)"
              : ", row factors ahead of both (shared_rows)";
  return text;
}

constexpr Implementation kDense{.name = "cuda.dense",
                                .refuses = refuses,
                                .predict_seconds = predict_seconds,
                                .forward_workspace = forward_workspace,
                                .backward_workspace = backward_workspace,
                                .forward = forward,
                                .backward = backward,
                                .prepare = prepare,
                                .kernels = kernels,
                                .adds_local = serves_local,
                                .reads_narrow_mixing = reads_narrow_mixing};

}  // namespace

const Implementation& dense_implementation() { return kDense; }

}  // namespace mhla::cuda
