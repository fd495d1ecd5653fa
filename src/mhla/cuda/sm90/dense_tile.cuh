// What the computing warps of all dense kernels share: row fragments, weights, output rows.
#pragma once

#include "mhla/cuda/sm90/dense_load.cuh"

namespace mhla::cuda::sm90 {

// A thread holds rows `lane / 4` and `lane / 4 + 8` of its warp's 16 rows, and of every group of 8
// columns the pair 2 * (lane % 4). Accumulators: [group][row of the two][column of the pair].
template <int D>
struct Fragments {
  static constexpr int kChunks = D / 8, kSteps = (kChunks + 1) / 2;
  std::uint32_t step[kSteps][4];

  // tile: 64 rows, of which this warp takes 16.
  __device__ __forceinline__ void load(std::uint32_t tile) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const std::uint32_t rows = tile + (2 * warp + lane / 8 % 2) * kChunks * kCore + lane % 8 * 16;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const bool lone = 2 * s + 1 == kChunks;
      const std::uint32_t at = rows + (2 * s + (lone ? 0 : lane / 16)) * kCore;
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                   : "=r"(step[s][0]), "=r"(step[s][1]), "=r"(step[s][2]), "=r"(step[s][3])
                   : "r"(at)
                   : "memory");
      if (lone) step[s][2] = step[s][3] = 0;
    }
  }
  // The pair of columns of `group` in row 0 or 1 of this thread.
  __device__ __forceinline__ std::uint32_t pair(int group, int row) const {
    return step[group / 2][group % 2 * 2 + row];
  }
};

__device__ __forceinline__ float2 load_shared_2(std::uint32_t at) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];\n" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
  return x;
}
__device__ __forceinline__ float4 load_shared_4(std::uint32_t at) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];\n"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(at)
               : "memory");
  return x;
}

// Blocks and ranks of this thread's two rows, asked for a tile ahead of their use.
struct RowIds {
  int block[2], order[2];

  __device__ __forceinline__ void load(const DenseArgs& args, int first, int count) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * i;
      const bool valid = row < count;
      block[i] = valid ? args.row_block[first + row] : 0;
      order[i] = args.seen == Seen::tokens_before && valid ? args.row_order[first + row] : 0;
    }
  }
};

// The two rows of this thread inside a tile of 64.
struct Rows {
  int token[2];  // of the batch entry; may lie past the end
  bool valid[2];
  int weights[2];  // byte offset of the row's block and this thread's columns in a weight table
  int order[2];

  __device__ __forceinline__ Rows(const RowIds& ids, int first, int count) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * i;
      token[i] = first + row;
      valid[i] = row < count;
      weights[i] = 4 * (ids.block[i] * kWeightStride + threadIdx.x % 4 * kQuadStride);
      order[i] = ids.order[i];
    }
  }
};

// Sets to zero which of this thread's four values in a group of 8 columns the causal mask hides.
template <bool kRowsAreKeys>
__device__ __forceinline__ void hide(float (&x)[4], const Rows& rows, std::uint32_t order,
                                     int group) {
  const float2 pair = load_shared_2(order + (group * 8 + threadIdx.x % 4 * 2) * 4);
  const int column[2] = {__float_as_int(pair.x), __float_as_int(pair.y)};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = rows.order[i / 2];
    if (kRowsAreKeys ? column[i % 2] < row : column[i % 2] > row) x[i] = 0.f;
  }
}

// Mixing weights of this thread's scores in two groups of 8 columns (from an even one on), zero
// where hidden.
template <bool kRowsAreKeys, bool kCausal>
__device__ __forceinline__ void load_weights(float (&m)[2][4], const Rows& rows,
                                             std::uint32_t table, std::uint32_t order, int group) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 w = load_shared_4(table + rows.weights[i] + group * 8);
    m[0][2 * i] = w.x, m[0][2 * i + 1] = w.y, m[1][2 * i] = w.z, m[1][2 * i + 1] = w.w;
  }
  if constexpr (kCausal) {
    hide<kRowsAreKeys>(m[0], rows, order, group);
    hide<kRowsAreKeys>(m[1], rows, order, group + 1);
  }
}

// Runs work<causal>() on one side of a branch, so that its loads are scheduled together.
template <typename Work>
__device__ __forceinline__ void by_mask(const DenseArgs& args, Work work) {
  if (args.seen == Seen::tokens_before) {
    work.template operator()<true>();
  } else {
    work.template operator()<false>();
  }
}

// Scores of 64 rows and kN columns: fragments times a tile (from its first token on).
template <typename T, int D, int kN>
__device__ __forceinline__ void issue_scores(float (&s)[kN / 2], const Fragments<D>& rows,
                                             std::uint32_t tile) {
  constexpr int kChunks = D / 8;
  wgmma<T, kN, false, false>(s, rows.step[0], columns_inner<kChunks>(tile, 0));
#pragma unroll
  for (int step = 1; step < Fragments<D>::kSteps; ++step) {
    wgmma<T, kN, false, true>(s, rows.step[step], columns_inner<kChunks>(tile, step));
  }
}

// In f16 the scores of a row are brought to the upper end of its range before they are rounded,
// since products of features leave it at both ends; the power of two cancels with that of the row
// sum. The power for a row whose largest score, over four neighbouring lanes, is the one given.
__device__ __forceinline__ float fit_row(float largest) {
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
  const int exponent = __float_as_int(largest) >> 23;  // biased by 127
  return __int_as_float(min(127 + 14 - (exponent - 127), 254) << 23);
}

// Row of scores to row of outputs: scale over the denominator, both times the power `fit`. Zero
// where the denominator is.
__device__ __forceinline__ float row_factor(const DenseArgs& args, float sum, float fit) {
  const float den = args.normalize ? args.scale * sum + args.eps * fit : fit;
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(inverse) : "f"(den));
  return fabsf(den) < 0x1p-126f ? 0.f : args.scale * inverse;
}

// Writes this thread's rows of a [B, N, H, width] tensor. Neighbouring lanes swap halves of two
// column groups, so that four lanes store 32 contiguous bytes.
template <typename T, int D>
__device__ __forceinline__ void store_rows(const RowTensor& tensor, int batch, int head,
                                           const Rows& rows, int width,
                                           const std::uint32_t (&words)[D / 8][2]) {
  if (tensor.data == nullptr) return;
  const int quad = threadIdx.x % 4;
  const bool odd = quad % 2 != 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    T* row = tensor.head<T>(batch, head) + rows.token[i] * tensor.token_stride;
    if (!tensor.vectors) {
#pragma unroll
      for (int g = 0; g < D / 8; ++g) {
        const int column = g * 8 + quad * 2;
        if (!rows.valid[i] || column >= width) break;
        row[column].bits = static_cast<std::uint16_t>(words[g][i]);
        if (column + 1 < width)
          row[column + 1].bits = static_cast<std::uint16_t>(words[g][i] >> 16);
      }
      continue;
    }
#pragma unroll
    for (int g = 0; g + 1 < D / 8; g += 2) {
      const std::uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? words[g][i] : words[g + 1][i],
                                                  1);
      const int column = (odd ? g + 1 : g) * 8 + quad / 2 * 4;
      if (rows.valid[i] && column < width) {
        *reinterpret_cast<uint2*>(row + column) = odd ? make_uint2(other, words[g + 1][i])
                                                      : make_uint2(words[g][i], other);
      }
    }
    if constexpr (D / 8 % 2 != 0) {
      const int column = D - 8 + quad * 2;
      if (rows.valid[i] && column < width) {
        *reinterpret_cast<std::uint32_t*>(row + column) = words[D / 8 - 1][i];
      }
    }
  }
}

// NOTE: read from lane 0, which tells the compiler that branches on it do not diverge.
__device__ __forceinline__ int warpgroup_index() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 128), 0);
}

// Sets the barriers up and writes the tables that stay, then parts the thread block: returns true
// for the loading warpgroup. NOTE: weights and blocks are read before the first copies start:
// behind them they would wait long.
template <bool kSums, int kMixingBlocks, int D, bool kRowZ, int kWarpgroups>
__device__ __forceinline__ bool begin_roles(const Shared<D, kRowZ, kWarpgroups>& shared) {
  using Layout = Shared<D, kRowZ, kWarpgroups>;
  constexpr int kThreads = dense_threads(kWarpgroups);
  const DenseArgs& args = shared.args;
  if (threadIdx.x == 0) {
    const auto init = [](std::uint32_t barriers, int warps) {
      barrier_init(barriers + Layout::kLanded, kLoadThreads);
      barrier_init(barriers + Layout::kFull, kLoadThreads);
      barrier_init(barriers + Layout::kEmpty, warps * kWarpArrivals);
    };
    for (int i = 0; i < shared.slots; ++i) init(shared.column_barriers(i), 4 * kWarpgroups);
    for (int i = 0; i < kWarpgroups * shared.buffers; ++i) {
      init(shared.row_barriers(i / shared.buffers, i % shared.buffers), 4);
    }
  }
  if (args.tables_stay) {
    const DenseGroup group = args.groups[0];  // all groups see the same columns
    const int thread = static_cast<int>(threadIdx.x), columns = args.tables * kTile;
    const std::uint32_t mixing = shared.slot(0);  // still free
    for (int i = thread; i < args.row_blocks * args.column_blocks; i += kThreads) {
      const int row = i / args.column_blocks, block = i - row * args.column_blocks;
      store_float(mixing + 4 * i,
                  args.mixing[static_cast<std::int64_t>(row) * args.mixing_row_stride +
                              block * args.mixing_column_stride]);
    }
    for (int first = 0; first < columns; first += kThreads) {
      const int column = first + thread;
      const bool valid = column < group.columns;
      const int token = group.column_first + column;
      const int block = valid ? args.column_block[token] : 0;
      const int order = valid && args.seen == Seen::tokens_before ? args.column_order[token] : 0;
      if (first == 0) __syncthreads();
      if (column >= columns) continue;
      write_table<kSums, kMixingBlocks>(
          args, shared.table(column / kTile), column % kTile, block, order, valid,
          [&](int i) { return load_float(mixing + 4 * (i * args.column_blocks + block)); });
    }
    fence_async();
  }
  __syncthreads();
  return warpgroup_index() == kWarpgroups;
}

// A warp arrives once all its lanes are done with the buffer.
__device__ __forceinline__ void release(std::uint32_t empty) {
  __syncwarp();
  warp_arrive(empty);
}

// The same once two fragments have arrived. NOTE: an arrival may overtake ldmatrix, so its address
// is made to depend on every load; items is never negative, and the sum is `empty`.
template <int D>
__device__ __forceinline__ void release_after(const Fragments<D>& a, const Fragments<D>& b,
                                              std::uint32_t empty, int items) {
  std::uint32_t loaded = 0;
#pragma unroll
  for (int s = 0; s < Fragments<D>::kSteps; ++s) loaded |= a.step[s][0] | b.step[s][0];
  release(empty + (loaded & static_cast<std::uint32_t>(items >> 31)));
}

// Which item a computing warpgroup is at.
struct Work {
  int batch, head, pair, tiles;
  DenseGroup group;

  // current: the group of the item before; there is often only one.
  __device__ Work(const DenseArgs& args, DenseGroup& current, int item) {
    pair = item / args.groups_count;
    if (args.groups_count > 1) current = args.groups[item - pair * args.groups_count];
    group = current;
    batch = pair / args.heads;
    head = pair - batch * args.heads;
    tiles = row_tiles(group);
  }
};

// Asks for the rows that the warpgroup takes after this tile.
template <int kWarpgroups, bool kRotate>
__device__ __forceinline__ void load_next(RowIds& ids, const DenseArgs& args, const Work& work,
                                          int item, int tile, int warpgroup,
                                          Turns<kWarpgroups, kRotate> turns) {
  DenseGroup group = work.group;
  tile += kWarpgroups;
  if (tile >= work.tiles) {
    turns.next_item(work.tiles);
    tile = turns.tile_of(warpgroup);
    const int next = item + static_cast<int>(gridDim.x);
    if (args.groups_count > 1 && next < args.items) group = args.groups[next % args.groups_count];
  }
  ids.load(args, group.row_first + tile * kTile, group.rows - tile * kTile);
}

// The column slots as one warpgroup walks them: sweeps over resident columns start again at the
// same slot and free the slots in the last sweep of an item; other sweeps free them at once.
struct ColumnWalk {
  Ring ring, first;
  bool resident, last = false;

  __device__ explicit ColumnWalk(const DenseArgs& args) : resident(args.resident != 0) {}
  __device__ void begin_item() { first = ring; }
  __device__ void begin_sweep(bool last_of_item) {
    if (resident) ring = first;
    last = last_of_item || !resident;
  }
};

// Waits for all columns of a sweep and frees them: for a warpgroup without rows in this item.
template <int D, bool kRowZ, int kWarpgroups>
__device__ __forceinline__ void skip_sweep(const Shared<D, kRowZ, kWarpgroups>& shared,
                                           ColumnWalk& walk, int columns) {
  for (int c = 0; c < columns; c += kTile) {
    barrier_wait(shared.column_full(walk.ring.index), walk.ring.parity);
    if (walk.last) release(shared.column_empty(walk.ring.index));
    walk.ring.advance(shared.slots);
  }
}

}  // namespace mhla::cuda::sm90
