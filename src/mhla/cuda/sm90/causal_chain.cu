// The kernel of the causal backward and its launch.
#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/causal_chain.cuh"

namespace mhla::cuda::sm90 {
namespace {

__global__ void __launch_bounds__(kGradientThreads, 1)
    causal_chain(const __grid_constant__ CausalChainArgs args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t base = ptx::shared_address(memory);
  const int number = static_cast<int>(blockIdx.x), group = static_cast<int>(threadIdx.x / 128);
  const int second = number - args.summary_blocks, third = second - args.mixing_blocks;
  const SummaryShared summary{base};
  const GradientShared gradient{base};
  if (threadIdx.x == 384) {
    if (second < 0) summary.init_barriers();
    if (third >= 0) gradient.init_barriers();
  }
  __syncthreads();
  // NOTE: the compiler wants every change of the number of registers in one chain of branches.
  if (second < 0 && group < 2) {
    take_registers<kChainRegisters>();
    compute_summaries(args.summaries, summary, {number, args.summary_blocks}, SummaryOrder{args});
  } else if (second < 0 && group == 3) {
    give_registers<kChainLoaderRegisters>();
    if (threadIdx.x == 384) {
      copy_summaries(args.summaries, summary, {number, args.summary_blocks});
    }
  } else if (third < 0 && group >= 2) {
    give_registers<kChainIdleRegisters>();
  } else if (third < 0) {
    take_registers<kChainRegisters>();
    mix_chained(args, memory, {second, args.mixing_blocks});
  } else if (group == 3) {
    give_registers<kGradientLoaderRegisters>();
    load_gradient(args.gradients, gradient, {third, args.gradient_blocks}, GradientOrder{args});
  } else if (group == 0) {
    take_registers<kGradientRegisters>();
    compute_rows_gradient<false>(args.gradients, gradient, {third, args.gradient_blocks});
  } else if (group == 1) {
    take_registers<kGradientRegisters>();
    compute_rows_gradient<true>(args.gradients, gradient, {third, args.gradient_blocks});
  } else {
    take_registers<kGradientRegisters>();
    compute_values_gradient(args.gradients, gradient, {third, args.gradient_blocks},
                            GradientOrder{args});
  }
}

}  // namespace

// NOTE: thread blocks wait for one another, so all have to be on the device at once: a cooperative
// launch.
void launch_causal_chain(const CausalChainArgs& args, void* stream) {
  const void* kernel = reinterpret_cast<const void*>(&causal_chain);
  allow_shared(kernel, kChainBytes);
  cudaLaunchAttribute together;
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(
      static_cast<unsigned>(args.summary_blocks + args.mixing_blocks + args.gradient_blocks));
  config.blockDim = dim3(kGradientThreads);
  config.dynamicSmemBytes = kChainBytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &together;
  config.numAttrs = 1;
  CausalChainArgs copy = args;
  void* parameters[] = {&copy};
  check_call(cudaLaunchKernelExC(&config, kernel, parameters), "cudaLaunchKernelExC(chain)");
}

}  // namespace mhla::cuda::sm90
