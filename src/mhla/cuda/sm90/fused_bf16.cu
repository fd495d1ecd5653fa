// Instances of the fused forward: head widths 32 and 64, up to 64 blocks.
#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/fused_forward.cuh"

namespace mhla::cuda::sm90 {
namespace {

struct Instance {
  int width, padded_blocks;
  void (*regular)(FusedArgs);
  void (*general)(FusedArgs);
  void (*products)(FusedArgs) = nullptr;
};

template <int D, int MB>
constexpr Instance instance() {
  return {D, MB * 16, fused_forward<Fused<D, MB, true>>, fused_forward<Fused<D, MB, false>>};
}

constexpr Instance kInstances[] = {
    instance<32, 1>(),
    instance<32, 2>(),
    instance<32, 3>(),
    instance<32, 4>(),
    {64, 16, fused_forward<Fused<64, 1, true>>, fused_forward<Fused<64, 1, false>>,
     fused_forward<Fused<64, 1, true>, true>}};

const Instance* find(int width, int padded_blocks) {
  for (const Instance& entry : kInstances) {
    if (entry.width == width && entry.padded_blocks == padded_blocks) return &entry;
  }
  return nullptr;
}

}  // namespace

bool fused_kernel_exists(int width, int padded_blocks) {
  return find(width, padded_blocks) != nullptr;
}

bool fused_products_exist(int width, int padded_blocks) {
  const Instance* entry = find(width, padded_blocks);
  return entry && entry->products;
}

void launch_fused(const FusedLaunch& launch, const FusedArgs& args) {
  const Instance* entry = find(launch.width, launch.padded_blocks);
  if (!entry) fail(ErrorCode::internal, "cuda", "no fused kernel of width ", launch.width);
  if (launch.grid == 0) return;
  FusedArgs copy = args;
  void* parameters[] = {&copy};
  const void* kernel = reinterpret_cast<const void*>(launch.products  ? entry->products
                                                     : launch.regular ? entry->regular
                                                                      : entry->general);
  allow_shared(kernel, launch.shared_bytes);
  check_call(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(launch.grid)),
                              dim3(32, static_cast<unsigned>(launch.warps)), parameters,
                              static_cast<std::size_t>(launch.shared_bytes),
                              static_cast<cudaStream_t>(launch.stream)),
             "cudaLaunchKernel(fused)");
}

}  // namespace mhla::cuda::sm90
