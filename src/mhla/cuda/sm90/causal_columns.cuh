// Causal forward without a normaliser, 64 columns of dv at a time, summaries on the chip:
//   o_i = phi(q_i) S~_i + m_ii tril(phi(q_i) phi(k_i)^T) v_i,  S~_i = sum over j < i of m_ij S_j.
//
// Two warpgroups make S_i = phi(k_i)^T v_i, 64 rows of dk each, and mix; a third makes the results
// of a block; one thread loads, two warps map keys, one stores.
#pragma once

#include "mhla/cuda/sm90/causal_columns_results.cuh"
#include "mhla/cuda/sm90/causal_columns_summaries.cuh"

namespace mhla::cuda::sm90 {

__device__ __forceinline__ void copy_columns(const ColumnsArgs& args, const ColumnsShared& shared) {
  KeyRing k;
  ValueRing v;
  int q = 1;  // parity of the place being free
  each_item(args, [&](const ColumnsItem& item, bool) {
    const auto copy_tile = [&](std::uint32_t to, const CUtensorMap& map, int block,
                               std::uint32_t landed) {
      arrive_and_expect(landed, ColumnsPlan::kTileBytes);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        copy_box_once(to + i * kBoxBytes, map, {i * 64, block * kTile, item.head, item.batch},
                      landed);
      }
    };
    const auto copy_keys = [&](int block) {
      barrier_wait(shared.k_empty(k.stage), k.parity ^ 1);
      copy_tile(shared.k(k.stage), args.k, block, shared.k_landed(k.stage));
      k.next();
    };
    copy_keys(0);
    for (int block = 0; block < args.blocks; ++block, q ^= 1, v.next()) {
      barrier_wait(shared.q_empty(), q);
      copy_tile(shared.q(), args.q, block, shared.q_landed());
      const std::uint32_t landed = shared.v_landed(v.stage);
      barrier_wait(shared.v_empty(v.stage), v.parity ^ 1);
      arrive_and_expect(landed, ColumnsPlan::kValueBytes);
      copy_box_once(shared.v(v.stage), args.v, {item.column, block * kTile, item.head, item.batch},
                    landed);
      if (block + 1 < args.blocks) copy_keys(block + 1);
    }
  });
}

// As many of eight as there are columns left
__device__ __forceinline__ void store_eight(bf16* to, const uint4& words, int left) {
  if (left >= 8) {
    __stcs(reinterpret_cast<uint4*>(to), words);
    return;
  }
  const std::uint32_t word[] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 7; ++i) {
    if (i < left) to[i] = bf16{static_cast<std::uint16_t>(word[i / 2] >> i % 2 * 16)};
  }
}

// NOTE: columns past dk become phi(0) too, and meet zeros of q.
template <typename Map>
__device__ __forceinline__ void map_columns(const ColumnsArgs& args, const ColumnsShared& shared,
                                            const Map& map) {
  const int thread = static_cast<int>(threadIdx.x % (32 * kColumnsMapWarps));
  KeyRing k;
  each_item(args, [&](const ColumnsItem&, bool) {
    for (int block = 0; block < args.blocks; ++block, k.next()) {
      barrier_wait(shared.k_landed(k.stage), k.parity);
      if (args.feature != Feature::identity) {
        map_rows<ColumnsPlan::kTileBytes / 16, 32 * kColumnsMapWarps, 4>(shared.k(k.stage), thread,
                                                                         map);
      }
      release_buffer(shared.k_mapped(k.stage));
    }
  });
}

// Results of a block to memory, by one warp: four rows at a time, 16 bytes a lane.
__device__ __forceinline__ void store_columns(const ColumnsArgs& args,
                                              const ColumnsShared& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32), row = lane / 8, chunk = lane % 8;
  const std::int64_t step = 4 * args.o_token;
  int full = 0;  // parity
  each_item(args, [&](const ColumnsItem& item, bool) {
    const bool whole_columns = item.column + kColumnsWidth <= args.dv;
    bf16* to = static_cast<bf16*>(args.o) + item.batch * args.o_batch + item.head * args.o_head +
               row * args.o_token + item.column + chunk * 8;
    for (int block = 0; block < args.blocks; ++block, full ^= 1) {
      barrier_wait(shared.out_full(), full);
      const std::uint32_t from = shared.out() + Box::chunk(row, chunk);
      const bool whole = (block + 1) * kTile <= args.tokens && whole_columns;
#pragma unroll 1
      for (int first = 0; first < kTile; first += 16) {
        uint4 x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          // NOTE: four rows on: another bit of the swizzle.
          const std::uint32_t at = (from ^ i % 2 * 64) + (first + 4 * i) * 128;
          asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                       : "=r"(x[i].x), "=r"(x[i].y), "=r"(x[i].z), "=r"(x[i].w)
                       : "r"(at)
                       : "memory");
        }
        if (whole) {
#pragma unroll
          for (int i = 0; i < 4; ++i, to += step) __stcs(reinterpret_cast<uint4*>(to), x[i]);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i, to += step) {
            const bool exists = (block * kTile + first + 4 * i + row) < args.tokens;
            if (exists) store_eight(to, x[i], args.dv - item.column - chunk * 8);
          }
        }
      }
      release_buffer(shared.out_empty());
    }
  });
}

__global__ void __launch_bounds__(kColumnsThreads, 1)
    causal_columns(const __grid_constant__ ColumnsArgs args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const ColumnsShared shared{ptx::shared_address(memory)};
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x / 32);
  constexpr int kMovers = kSummaryWarps + kResultWarps;
  if (warp >= kMovers) {
    give_registers<kMoverRegisters>();
    if (warp < kMovers + kColumnsMapWarps) {
      if (args.feature == Feature::elu1) {
        map_columns(args, shared,
                    [](std::uint32_t x) { return feature_pair<bf16, Feature::elu1>(x); });
      } else if (args.feature == Feature::relu) {
        map_columns(args, shared,
                    [](std::uint32_t x) { return feature_pair<bf16, Feature::relu>(x); });
      } else {
        map_columns(args, shared, PairMap<bf16>(args.feature));
      }
    } else if (warp == kMovers + kColumnsMapWarps) {
      store_columns(args, shared);
    } else if (threadIdx.x % 32 == 0) {
      copy_columns(args, shared);
    }
  } else if (warp >= kSummaryWarps) {
    take_registers<kResultRegisters>();
    ColumnResults{args, shared}.run();
  } else {
    take_registers<kSummaryRegisters>();
    ColumnSummaries(args, shared).run();
  }
}

}  // namespace mhla::cuda::sm90
