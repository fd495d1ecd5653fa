// Mixing gradient of the dense backward: its sums per key token, added up in a fixed order.
#include "mhla/cuda/device/ptx.cuh"
#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/dense_launch.h"

namespace mhla::cuda::sm90 {
namespace {

constexpr int kReduceThreads = 1024;

// One thread block per key block (and head): d_m[., b] = sum over slots and tokens of the block.
__global__ void __launch_bounds__(kReduceThreads) dense_reduce_kernel(const DenseReduceArgs args) {
  __shared__ float partial[kReduceThreads];
  ptx::begin_after_previous();
  const int block = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(threadIdx.x) % args.mixing_blocks;
  const int part = static_cast<int>(threadIdx.x) / args.mixing_blocks;
  const int parts = kReduceThreads / args.mixing_blocks;

  // Each share walks the slots for its tokens
  const int first = block < args.key_blocks ? args.block_offsets[block] : 0;
  const int tokens = block < args.key_blocks ? args.block_offsets[block + 1] - first : 0;
  const int turns = args.slots / args.heads;
  const int lanes = tokens < parts ? max(tokens, 1) : parts;  // shares side by side over tokens
  const int depth = parts / lanes;                            // shares side by side over slots
  float sum = 0.f;
  for (int t = part % lanes; t < tokens && part / lanes < depth; t += lanes) {
    const float* from = args.sums +
                        static_cast<std::int64_t>(args.token_list[first + t]) * args.mixing_blocks +
                        row;
#pragma unroll 16
    for (int turn = part / lanes; turn < turns; turn += depth) {
      sum += from[(static_cast<std::int64_t>(turn) * args.heads + head) * args.sums_stride];
    }
  }

  // Halving tree over the shares
  partial[threadIdx.x] = sum;
  for (int half = parts / 2; half > 0; half /= 2) {
    __syncthreads();
    if (part < half) partial[threadIdx.x] += partial[threadIdx.x + half * args.mixing_blocks];
  }
  __syncthreads();

  // Weights that the problem never reads get zero
  for (int i = static_cast<int>(threadIdx.x); i < args.rows; i += kReduceThreads) {
    const bool read = i < args.query_blocks && block < args.key_blocks &&
                      (args.seen == Seen::all || block <= i);
    args.d_mixing[head * args.head_stride + i * args.row_stride + block * args.column_stride] =
        read ? partial[i] : 0.f;
  }
}

}  // namespace

void launch_dense_reduce(const DenseReduceArgs& args, void* stream) {
  launch(dense_reduce_kernel, {.x = args.columns, .y = args.heads}, kReduceThreads, 0, stream, args,
         true);
}

}  // namespace mhla::cuda::sm90
