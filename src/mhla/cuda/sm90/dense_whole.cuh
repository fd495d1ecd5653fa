// The backward of whole heads: one thread block per multiprocessor takes heads in turn, two
// warpgroups compute, a third one loads.
#pragma once

#include "mhla/cuda/sm90/dense_whole_key.cuh"

namespace mhla::cuda::sm90 {

inline constexpr int kWholeThreads = 384, kWholeComputeThreads = 256;
// NOTE: 65536 / 384 threads, rounded down to a multiple of 8, is 168: the three add up to 3 * 168.
constexpr int whole_compute_registers(int width) { return width == 72 ? 224 : 232; }
constexpr int whole_load_registers(int width) {
  return 3 * 168 - 2 * whole_compute_registers(width);
}

// Barriers and the table of rows.
template <int D>
__device__ __forceinline__ void begin_whole(const WholeArgs& args, const WholeShared<D>& shared) {
  using Layout = WholeShared<D>;
  const int thread = static_cast<int>(threadIdx.x);
  const int* table = reinterpret_cast<const int*>(args.table);
  for (int i = thread; i < static_cast<int>(sizeof(WholeTable) / 4); i += kWholeThreads) {
    store_float(shared.base + Layout::kTable + 4 * i, __int_as_float(table[i]));
  }
  if (thread == kWholeThreads - 1) {
#pragma unroll
    for (int i = 0; i < Layout::kSets * kWholeTiles; ++i) {
      barrier_init(shared.landed(0, i), kWholeLoadThreads);
      barrier_init(shared.full(0, i), kWholeLoadThreads);
      barrier_init(shared.empty(0, i), kWholeComputeThreads / 32 * kWarpArrivals);
    }
  }
  __syncthreads();
}

// The weights of all pairs of slots, which never change, by the computing warpgroups.
template <int D>
__device__ __forceinline__ void write_weights(const WholeArgs& args, const WholeShared<D>& shared) {
  using Layout = WholeShared<D>;
  static_assert(kWholeSlots * kWholeSlots == kWholeComputeThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const int query = thread / kWholeSlots, key = thread % kWholeSlots;
  const std::uint32_t blocks = shared.base + Layout::kTable + 4 * 2 * kWholeRows;
  const int row = load_int(blocks + 4 * query);
  const int column = load_int(blocks + 4 * (kWholeSlots + key));
  const bool seen = row >= 0 && column >= 0 && (!args.blocks_before || column <= row);
  const float weight = seen ? args.mixing[static_cast<std::int64_t>(row) * args.mixing_row_stride +
                                          column * args.mixing_column_stride]
                            : 0.f;
  store_float(shared.base + Layout::kWeights + 4 * thread, weight);
  store_float(shared.base + Layout::kWeightsByKey + 4 * (key * kWholeSlots + query), weight);
  store_float(shared.base + Layout::kSums + 4 * thread, 0.f);
  ptx::sync_warps(1, kWholeComputeThreads);
}

// Adds the slots of a query block up and writes the sums of this thread block's heads.
template <int D>
__device__ __forceinline__ void end_whole(const WholeArgs& args, const WholeShared<D>& shared) {
  using Layout = WholeShared<D>;
  if (args.mixing_sums == nullptr) return;
  asm volatile("griddepcontrol.launch_dependents;\n");  // dense_reduce.cu
  ptx::sync_warps(1, kWholeComputeThreads);
  const int thread = static_cast<int>(threadIdx.x), key = thread / kWholeSlots;
  const int block = thread % kWholeSlots;
  float sum = 0.f;
  for (int query = 0; query < kWholeSlots; ++query) {
    const int of = load_int(shared.base + Layout::kTable + 4 * (2 * kWholeRows + query));
    const float x = load_float(shared.base + Layout::kSums + 4 * (key * kWholeSlots + query));
    if (of == block) sum += x;
  }
  args.mixing_sums[blockIdx.x * (kWholeSlots * kWholeSlots) + thread] = sum;
}

// kShared: the shared_position normaliser, whose row factors are given.
template <typename T, int D, bool kShared>
__global__ void __launch_bounds__(kWholeThreads, 1)
    dense_whole_kernel(const __grid_constant__ WholeArgs args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const WholeShared<D> shared{ptx::shared_address(memory)};
  begin_whole(args, shared);
  const int warpgroup = warpgroup_index();
  if (warpgroup == 2) {
    give_registers<whole_load_registers(D)>();
    WholeLoader<T, D>(args, shared).run();
    return;
  }
  take_registers<whole_compute_registers(D)>();
  write_weights(args, shared);

  SetRing ring;
  std::uint32_t buffer = 0;  // of the row factors
  for (int item = blockIdx.x; item < args.items; item += gridDim.x) {
    WholeHead at;
    at.batch = item / args.heads;
    at.head = item - at.batch * args.heads;
    at.keys = ring;
    at.queries = ring.next<WholeShared<D>::kSets>();
    ring = at.queries.next<WholeShared<D>::kSets>();
    at.factors = shared.base + WholeShared<D>::kFactors + buffer * kWholeRows * 8;
    buffer ^= 1;

    // By queries; a warpgroup takes every other tile
    for (int t = 0; t < kWholeTiles; ++t) {
      barrier_wait(shared.full(at.keys.set, t), at.keys.parity);
    }
#pragma unroll 1
    for (int tile = warpgroup; tile < kWholeTiles; tile += 2) {
      barrier_wait(shared.full(at.queries.set, tile), at.queries.parity);
      whole_query_tile<T, D, kShared>(args, shared, at, tile);
    }

    // The other warpgroup's keys are not needed again; its row factors are.
    for (int t = 1 - warpgroup; t < kWholeTiles; t += 2) release(shared.empty(at.keys.set, t));
    ptx::sync_warps(1, kWholeComputeThreads);

    // By keys
    for (int t = 0; t < kWholeTiles; ++t) {
      barrier_wait(shared.full(at.queries.set, t), at.queries.parity);
    }
#pragma unroll 1
    for (int tile = warpgroup; tile < kWholeTiles; tile += 2) {
      whole_key_tile<T, D, kShared>(args, shared, at, tile, tile + 2 >= kWholeTiles);
    }
  }
  end_whole(args, shared);
}

}  // namespace mhla::cuda::sm90
