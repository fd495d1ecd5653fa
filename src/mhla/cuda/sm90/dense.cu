// The implementation "cuda.dense": scores in tiles on the chip, for short sequences on Hopper.
#include <algorithm>

#include "mhla/core/cost.h"
#include "mhla/cuda/arguments.h"
#include "mhla/cuda/implementations.h"
#include "mhla/cuda/sm90/dense_plan.h"

namespace mhla::cuda {
namespace {

using namespace sm90;

struct Prepared {
  DensePlan plan;
  DenseTables tables;
};

std::size_t align(std::size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}
std::size_t factor_bytes(const Problem& problem, const DensePlan& plan) {
  return align(static_cast<std::size_t>(plan.pairs * problem.layout.tokens()) * sizeof(RowFactor));
}

// Everything a kernel reads that does not depend on which gradient it computes.
DenseArgs common_args(const PlanData& data, DenseKernel kernel, const TensorView& mixing) {
  const auto& [plan, tables] = *static_cast<const Prepared*>(data.prepared.get());
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

// Score products over the rate measured at 256 tokens on an H200, or traffic over the bandwidth
// seen there, on as many multiprocessors as have work.
double predict_seconds(const Problem& problem, const PlanOptions&) {
  constexpr double kRate = 230e12, kBandwidth = 1.8e12, kLaunch = 4e-6;
  const DensePlan plan = dense_plan(problem);
  double scores = 0;  // padded to tiles
  for (const DenseGroup& group : plan.stage(DenseKernel::forward).groups) {
    const auto padded = [](int n) { return static_cast<double>((n + kTile - 1) / kTile * kTile); };
    scores += padded(group.rows) * padded(group.columns);
  }
  const double flops = 4.0 * scores * static_cast<double>(plan.pairs) * plan.width;
  const double busy = static_cast<double>(std::max(plan.grid(DenseKernel::forward), 1)) /
                      static_cast<double>(plan.processors);
  const double seconds = std::max(flops / kRate, linear_cost(problem).forward_bytes / kBandwidth) /
                         busy;
  return seconds + kLaunch;
}

std::size_t forward_workspace(const Problem&, const PlanOptions&) { return 0; }

std::size_t backward_workspace(const Problem& problem, const PlanOptions&) {
  const DensePlan plan = dense_plan(problem);
  return factor_bytes(problem, plan) +
         align(static_cast<std::size_t>(plan.sum_slots(problem) * problem.keys().tokens() *
                                        plan.mixing_blocks) *
               sizeof(float));
}

std::shared_ptr<const void> prepare(const Problem& problem) {
  const DeviceGuard guard(problem.device.index);
  DensePlan plan = dense_plan(problem);
  DenseTables tables(problem, plan);
  return std::make_shared<Prepared>(Prepared{std::move(plan), std::move(tables)});
}

void forward(const PlanData& data, const ForwardInputs& inputs, const ForwardOutputs& outputs,
             const Workspace&, Stream stream) {
  const DeviceGuard guard(data.problem.device.index);
  DenseArgs args = common_args(data, DenseKernel::forward, inputs.mixing);
  args.row_x = row_tensor(inputs.q);
  args.column_x = row_tensor(inputs.k);
  args.column_z = row_tensor(inputs.v);
  args.out_z = row_tensor(outputs.o);
  run(data, DenseKernel::forward, args, stream);
}

void reduce(const PlanData& data, const DenseArgs& args, const TensorView& d_mixing,
            Stream stream) {
  const auto& [plan, tables] = *static_cast<const Prepared*>(data.prepared.get());
  const Problem& problem = data.problem;
  const int head = d_mixing.rank - 3, row = d_mixing.rank - 2, column = d_mixing.rank - 1;
  launch_dense_reduce({.sums = args.mixing_sums,
                       .sums_stride = args.mixing_sums_stride,
                       .slots = static_cast<int>(plan.sum_slots(problem)),
                       .mixing_blocks = plan.mixing_blocks,
                       .heads = head < 0 ? 1 : static_cast<int>(problem.heads),
                       .token_list = tables.key_list.data(),
                       .block_offsets = tables.key_offsets.data(),
                       .query_blocks = static_cast<int>(problem.layout.mixing_size()),
                       .key_blocks = static_cast<int>(problem.keys().mixing_size()),
                       .seen = args.seen,
                       .d_mixing = static_cast<float*>(d_mixing.data),
                       .head_stride = head < 0 ? 0 : d_mixing.strides[head],
                       .row_stride = d_mixing.strides[row],
                       .column_stride = d_mixing.strides[column],
                       .rows = static_cast<int>(d_mixing.shape[row]),
                       .columns = static_cast<int>(d_mixing.shape[column])},
                      stream);
}

void backward(const PlanData& data, const BackwardInputs& inputs, const BackwardOutputs& outputs,
              const Workspace& workspace, Stream stream) {
  const DeviceGuard guard(data.problem.device.index);
  const Problem& problem = data.problem;
  const DensePlan& plan = static_cast<const Prepared*>(data.prepared.get())->plan;
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
  if (outputs.d_mixing.defined()) reduce(data, key, outputs.d_mixing, stream);
}

constexpr Implementation kDense{.name = "cuda.dense",
                                .refuses = dense_refuses,
                                .predict_seconds = predict_seconds,
                                .forward_workspace = forward_workspace,
                                .backward_workspace = backward_workspace,
                                .forward = forward,
                                .backward = backward,
                                .prepare = prepare};

}  // namespace

const Implementation& dense_implementation() { return kDense; }

}  // namespace mhla::cuda
