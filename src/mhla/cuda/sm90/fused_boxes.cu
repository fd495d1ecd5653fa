// Instances and launches of the kernels that spread a head over a cluster.
#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/fused_box_backward.cuh"
#include "mhla/cuda/sm90/fused_box_forward.cuh"
#include "mhla/cuda/sm90/fused_slot_backward.cuh"
#include "mhla/cuda/sm90/fused_slot_forward.cuh"

namespace mhla::cuda::sm90 {
namespace {

struct Kernel {
  int cluster = 0, threads = 0;
  void (*entry)(BoxArgs) = nullptr;
  int (*bytes)(bool backward, bool shared, int slots) = nullptr;
};
struct Instance {
  int width, padded_blocks;
  Kernel forward, forward_shared, backward, backward_shared;
  const Kernel& kernel(bool back, bool shared) const {
    if (back) return shared ? backward_shared : backward;
    return shared ? forward_shared : forward;
  }
};

template <typename X>
constexpr Kernel kernel(void (*entry)(BoxArgs)) {
  return {X::C, X::kThreads, entry,
          [](bool backward, bool shared, int slots) { return X::bytes(backward, shared, slots); }};
}
template <typename B>
constexpr Instance backward_only() {
  return {.width = B::D,
          .padded_blocks = B::MT * 16,
          .backward = kernel<B>(fused_box_backward<B, false>),
          .backward_shared = kernel<B>(fused_box_backward<B, true>)};
}
template <typename F, typename B>
constexpr Instance instance() {
  static_assert(F::D == B::D && F::MT == B::MT);
  Instance both = backward_only<B>();
  both.forward = both.forward_shared = kernel<F>(fused_box_forward<F>);
  return both;
}
template <typename F, typename B>
constexpr Instance slots() {
  static_assert(F::D == B::D && F::MT == B::MT);
  return {.width = F::D,
          .padded_blocks = F::MT * 16,
          .forward = kernel<F>(fused_slot_forward<F, false>),
          .forward_shared = kernel<F>(fused_slot_forward<F, true>),
          .backward = kernel<B>(fused_slot_backward<B, false>),
          .backward_shared = kernel<B>(fused_slot_backward<B, true>)};
}

// By number of blocks, ascending. The forward of width 64 is faster in one thread block.
constexpr Instance kInstances[] = {
    instance<Boxes<32, 1, 4, 2, 2, 2>, Boxes<32, 1, 4, 2, 2, 2>>(),
    instance<Boxes<32, 4, 4, 2, 2, 2>, Boxes<32, 4, 8, 2, 2, 2>>(),
    backward_only<Boxes<64, 1, 8, 2, 1, 2>>(),
    slots<Boxes<96, 1, 8, 2, 2, 2, 1, true>, Boxes<96, 1, 8, 2, 2, 1, 2>>()};

const Instance* find(int width, int blocks) {
  for (const Instance& entry : kInstances) {
    if (entry.width == width && blocks <= entry.padded_blocks) return &entry;
  }
  return nullptr;
}

// d_m of 8 weights a thread block: 128 shares of the partial sums, added up in a fixed order.
constexpr int kReduceWeights = 8, kReduceShares = 128;
__global__ void __launch_bounds__(kReduceWeights* kReduceShares)
    reduce_boxes(const BoxReduceArgs args) {
  __shared__ float sums[kReduceShares][kReduceWeights + 1];
  const int column = static_cast<int>(threadIdx.x) % kReduceWeights;
  const int share = static_cast<int>(threadIdx.x) / kReduceWeights;
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * kReduceWeights + column;
  const int b = static_cast<int>(n % args.cols), i = static_cast<int>(n / args.cols % args.rows);
  const std::int64_t matrix = n / args.cols / args.rows;
  const bool exists = matrix < args.matrices;
  float sum = 0.f;
  if (exists && i < args.q_blocks && b < args.k_blocks) {
    const std::int64_t size = static_cast<std::int64_t>(args.padded) * args.padded;
    const float* from = args.partial + matrix * size + i * args.padded + b;
#pragma unroll 8
    for (int split = share; split < args.splits; split += kReduceShares) {
      sum += from[split * args.matrices * size];
    }
  }
  sums[share][column] = sum;
  for (int half = kReduceShares / 2; half > 0; half /= 2) {
    __syncthreads();
    if (share < half) sums[share][column] += sums[share + half][column];
  }
  if (share > 0 || !exists) return;
  args.d_mixing[matrix * args.head_stride + i * args.row_stride + b * args.col_stride] =
      sums[0][column];
}

}  // namespace

int box_cluster(int width, int blocks, bool backward) {
  const Instance* entry = find(width, blocks);
  return entry ? entry->kernel(backward, false).cluster : 0;
}
int box_padded_blocks(int width, int blocks) { return find(width, blocks)->padded_blocks; }

// A launch of some clusters, ready for the runtime.
struct ClusterLaunch {
  const void* kernel;
  cudaLaunchAttribute cluster;
  cudaLaunchConfig_t config{};

  ClusterLaunch(int width, int blocks, bool backward, bool shared, int clusters, void* stream) {
    const Instance* found = find(width, blocks);
    const Kernel* entry = found ? &found->kernel(backward, shared) : nullptr;
    if (!entry || !entry->entry) {
      fail(ErrorCode::internal, "cuda", "no fused kernel of width ", width);
    }
    kernel = reinterpret_cast<const void*>(entry->entry);
    const int slots = (blocks + entry->cluster - 1) / entry->cluster;
    const int bytes = entry->bytes(backward, shared, slots);
    allow_shared(kernel, bytes);
    const auto size = static_cast<unsigned>(entry->cluster);
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = size;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.gridDim = dim3(static_cast<unsigned>(clusters) * size);
    config.blockDim = dim3(static_cast<unsigned>(entry->threads));
    config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &cluster;
    config.numAttrs = 1;
  }
};

int box_active_clusters(int width, int blocks, bool backward, bool shared) {
  const ClusterLaunch launch(width, blocks, backward, shared, kMostClusters, nullptr);
  int count = 0;
  check_call(cudaOccupancyMaxActiveClusters(&count, launch.kernel, &launch.config),
             "cudaOccupancyMaxActiveClusters");
  return count < 1 ? 1 : count < kMostClusters ? count : kMostClusters;
}

void launch_boxes(const BoxLaunch& launch, const BoxArgs& args) {
  if (launch.clusters == 0) return;
  const ClusterLaunch ready(launch.width, launch.blocks, launch.backward, launch.shared,
                            launch.clusters, launch.stream);
  BoxArgs copy = args;
  void* parameters[] = {&copy};
  check_call(cudaLaunchKernelExC(&ready.config, ready.kernel, parameters),
             "cudaLaunchKernelExC(fused)");
}

void launch_box_reduce(const BoxReduceArgs& args, void* stream) {
  const std::int64_t weights = static_cast<std::int64_t>(args.matrices) * args.rows * args.cols;
  launch(reduce_boxes, {.x = (weights + kReduceWeights - 1) / kReduceWeights},
         kReduceWeights * kReduceShares, 0, stream, args);
}

}  // namespace mhla::cuda::sm90
