// The linear form on CUDA devices: summaries, mixing, read-out, and their backward.
#include <algorithm>

#include "mhla/core/cost.h"
#include "mhla/cuda/implementations.h"
#include "mhla/cuda/linear_call.h"

namespace mhla::cuda {
namespace {

// Bytes over the rate that these kernels reached on an H200 (docs/kernels/linear.md), plus
// launches.
template <bool kTf32>
double predict_seconds(const Problem& problem, const PlanOptions&) {
  const LinearPlan plan = linear_plan(problem, kTf32);
  const double summaries = static_cast<double>(problem.batch * problem.heads) *
                           (2.0 * plan.k_blocks + 2.0 * plan.q_blocks) *
                           static_cast<double>(plan.entries) * plan.types->summary_size;
  const double rate = plan.tiles.kernels != nullptr   ? 3.9e12
                      : plan.types->summary_size == 2 ? 2.5e12  // bf16, but for tiny heads
                                                      : 0.8e12;
  constexpr double kLaunch = 3e-6;
  // Denominators that are not one dot product of the query at hand read q once more.
  const double rows = plan.given ? static_cast<double>(problem.batch * problem.heads *
                                                       problem.layout.tokens() * problem.dk) *
                                       static_cast<double>(size_of(problem.dtype))
                                 : 0;
  return (linear_cost(problem).forward_bytes + summaries + rows) / rate +
         kLaunch * static_cast<double>(4 * plan.groups() + (plan.given ? 3 : 0));
}

template <bool kTf32>
std::size_t forward_workspace(const Problem& problem, const PlanOptions&) {
  return linear_workspace(problem, linear_plan(problem, kTf32), false).bytes;
}
template <bool kTf32>
std::size_t backward_workspace(const Problem& problem, const PlanOptions&) {
  return linear_workspace(problem, linear_plan(problem, kTf32), true).bytes;
}

template <bool kTf32>
std::shared_ptr<const void> prepare(const Problem& problem) {
  const DeviceGuard guard(problem.device.index);
  auto prepared = std::make_shared<LinearPrepared>();
  prepared->plan = linear_plan(problem, kTf32);
  prepared->overlap = code_version(problem.device.index) >= 90;
  prepared->tables = linear_tables(problem, prepared->plan);
  const LinearPlan& plan = prepared->plan;
  for (const LinearKernel* kernel : used_kernels(plan)) {
    allow_shared(reinterpret_cast<const void*>(kernel->entry),
                 shared_bytes(*kernel, stages_of(*kernel, plan)));
  }
  if (plan.resident != nullptr) {
    for (const MixKernel* kernel : {&plan.resident->mix, &plan.resident->mix_transposed}) {
      allow_shared(reinterpret_cast<const void*>(kernel->entry), kernel->bytes);
    }
  }
  for (const MixKernel* kernel : {plan.mix, plan.mix_transposed}) {
    allow_shared(reinterpret_cast<const void*>(kernel->entry), kernel->bytes);
  }
  if (plan.pair_mixing) {
    const PairMixKernel& kernel = pair_mix_kernel();
    allow_shared(reinterpret_cast<const void*>(kernel.entry), kernel.bytes);
  }
  allow_shared(reinterpret_cast<const void*>(plan.weight_gradient->entry),
               plan.weight_gradient->bytes);
  sm90::allow_tiles(plan.tiles);
  sm90::allow_slabs(plan.slabs);
  return prepared;
}

void forward(const PlanData& data, const ForwardInputs& inputs, const ForwardOutputs& outputs,
             const Workspace& workspace, Stream stream) {
  const DeviceGuard guard(data.problem.device.index);
  LinearCall call(data, workspace, stream, false);
  LinearArgs& args = call.args();
  args.q = row_tensor(inputs.q);
  args.k = row_tensor(inputs.k);
  args.v = row_tensor(inputs.v);
  args.o = row_tensor(outputs.o);
  const bool separate = data.problem.separate_denominator;
  args.q_den = separate ? row_tensor(inputs.q_den) : args.q;
  args.k_den = separate ? row_tensor(inputs.k_den) : args.k;
  call.try_tiles(inputs, outputs);
  call.prepare_weights(inputs.mixing);
  call.for_each_group([&] {
    call.summarize();
    call.read_out();
  });
}

void backward(const PlanData& data, const BackwardInputs& inputs, const BackwardOutputs& outputs,
              const Workspace& workspace, Stream stream) {
  const DeviceGuard guard(data.problem.device.index);
  LinearCall call(data, workspace, stream, true);
  LinearArgs& args = call.args();
  args.q = row_tensor(inputs.q);
  args.k = row_tensor(inputs.k);
  args.v = row_tensor(inputs.v);
  args.o = row_tensor(inputs.o);
  args.d_o = row_tensor(inputs.d_o);
  args.d_q = row_tensor(outputs.d_q);
  args.d_k = row_tensor(outputs.d_k);
  args.d_v = row_tensor(outputs.d_v);
  const bool separate = data.problem.separate_denominator;
  args.q_den = separate ? row_tensor(inputs.q_den) : args.q;
  args.k_den = separate ? row_tensor(inputs.k_den) : args.k;
  args.d_q_den = row_tensor(outputs.d_q_den);
  args.d_k_den = row_tensor(outputs.d_k_den);
  const bool weights = outputs.d_mixing.defined();
  call.try_tiles(inputs, outputs);
  call.prepare_weights(inputs.mixing);
  if (!call.run_causal(inputs, outputs)) {
    call.for_each_group([&] {
      call.summarize(true);
      call.go_back(weights);
    });
  }
  if (weights) call.reduce_weights(outputs.d_mixing);
}

template <bool kTf32>
std::string kernels(const Problem& problem) {
  return kernels_text(problem, linear_plan(problem, kTf32));
}

constexpr Implementation kLinear{.name = "cuda.linear",
                                 .refuses = linear_refuses,
                                 .predict_seconds = predict_seconds<false>,
                                 .forward_workspace = forward_workspace<false>,
                                 .backward_workspace = backward_workspace<false>,
                                 .forward = forward,
                                 .backward = backward,
                                 .prepare = prepare<false>,
                                 .kernels = kernels<false>};

std::optional<std::string> tf32_refuses(const Problem& problem) {
  if (problem.dtype != DType::f32) return "TF32 is for f32 inputs";
  return linear_refuses(problem);
}

constexpr Implementation kTf32{
    .name = "cuda.tf32",
    .refuses = tf32_refuses,
    .predict_seconds = predict_seconds<true>,
    .forward_workspace = forward_workspace<true>,
    .backward_workspace = backward_workspace<true>,
    .forward = forward,
    .backward = backward,
    .prepare = prepare<true>,
    .kernels = kernels<true>,
    .only_by_name = "rounds products to TF32: must be asked for by name"};

}  // namespace

const Implementation& linear_implementation() { return kLinear; }
const Implementation& tf32_implementation() { return kTf32; }

}  // namespace mhla::cuda
