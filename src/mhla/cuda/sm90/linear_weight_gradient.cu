// The gradient of the mixing weights on Hopper: all 160 x 160 sums in the registers of one thread
// block, 64 entries of all summaries and of their gradients at a time.
#include "mhla/cuda/sm90/linear_tile.cuh"

namespace mhla::cuda::sm90 {
namespace {

// Three warpgroups, 64 rows each: rows past 160 are zeros.
struct GradientMemory {
  static constexpr int kGroups = 3, kThreads = kGroups * 128 + 32, kStages = 4;
  static constexpr int kLeft = 192, kRight = 160;  // rows of 128 bytes
  static constexpr int kStage = (kLeft + kRight) * 128;
  static constexpr int kBytes = kStages * kStage + 2 * kStages * 8 + 1024;

  std::uint32_t base;
  __device__ __forceinline__ explicit GradientMemory(const byte* shared)
      : base((ptx::shared_address(shared) + 1023u) & ~1023u) {}
  __device__ __forceinline__ std::uint32_t left(int stage) const { return base + stage * kStage; }
  __device__ __forceinline__ std::uint32_t right(int stage) const {
    return left(stage) + kLeft * 128;
  }
  __device__ __forceinline__ std::uint32_t full(int stage) const {
    return left(kStages) + stage * 8;
  }
  __device__ __forceinline__ std::uint32_t empty(int stage) const { return full(kStages + stage); }
};

__global__ void __launch_bounds__(GradientMemory::kThreads, 1)
    weight_gradient_slabs(const __grid_constant__ SlabGradientArgs args) {
  using M = GradientMemory;
  extern __shared__ __align__(16) byte shared[];
  const M memory(shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < M::kStages; ++i) {
      barrier_init(memory.full(i), 1);
      barrier_init(memory.empty(i), 4 * M::kGroups * kWarpArrivals);
    }
    fence_barriers();
  }
  __syncthreads();
  ptx::begin_after_previous();
  const int tasks = args.pairs * args.slabs;
  Turn stage;
  if (threadIdx.x / 128 == M::kGroups) {
    if (threadIdx.x % 32 != 0) return;
#pragma unroll 1
    for (int task = blockIdx.x; task < tasks; task += static_cast<int>(gridDim.x)) {
      const int pair = task / args.slabs;
      const SlicePlace at{(task - pair * args.slabs) * 64, 0, pair, 0, 0};
      barrier_wait(memory.empty(stage.index), stage.parity ^ 1);
      barrier_expect(memory.full(stage.index), M::kStage);
      load_slice(memory.left(stage.index), args.left, at, memory.full(stage.index));
      load_slice(memory.right(stage.index), args.right, at, memory.full(stage.index));
      stage.advance(M::kStages);
    }
    return;
  }

  const Seat64 seat;
  float first[64], rest[16];  // columns 0 to 127, 128 to 159
#pragma unroll
  for (float& x : first) x = 0.f;
#pragma unroll
  for (float& x : rest) x = 0.f;
#pragma unroll 1
  for (int task = blockIdx.x; task < tasks; task += static_cast<int>(gridDim.x)) {
    barrier_wait(memory.full(stage.index), stage.parity);
    const std::uint32_t left = memory.left(stage.index) + seat.group * 64 * 128;
    const std::uint32_t right = memory.right(stage.index);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      wgmma_shared<bf16, true>(first, inner_columns<0>(left, s), inner_columns<0>(right, s));
      wgmma_shared<bf16, true>(rest, inner_columns<0>(left, s),
                               inner_columns<0>(right + 128 * 128, s));
    }
    wgmma_commit();
    wgmma_wait<0>();
    arrive_read(memory.empty(stage.index));
    stage.advance(M::kStages);
  }

  float* out = args.partial + static_cast<std::int64_t>(blockIdx.x) * M::kRight * M::kRight;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = seat.group * 64 + seat.warp * 16 + seat.lane / 4 + half * 8;
    if (row >= M::kRight) continue;
    float* to = out + row * M::kRight + seat.lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 16; ++j)
      store_pair(to + j * 8, first[4 * j + 2 * half], first[4 * j + 2 * half + 1]);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      store_pair(to + 128 + j * 8, rest[4 * j + 2 * half], rest[4 * j + 2 * half + 1]);
  }
}

}  // namespace

const SlabGradientKernel& slab_gradient() {
  using M = GradientMemory;
  static const SlabGradientKernel kKernel{weight_gradient_slabs, M::kThreads, M::kBytes, M::kLeft,
                                          M::kRight};
  return kKernel;
}

}  // namespace mhla::cuda::sm90
