// The local term of the forward by positions where a warpgroup does nothing else: a 3 x 3 depthwise
// convolution of v, rounded to where the computing warps put their outputs, ahead of them.
//
// A warp takes 16 channels of all tokens. The 16 rows of a fragment are all blocks at one position,
// so a tap inside of the block is the fragment of another position, which stays in registers, and
// one across its edge is that position with its rows moved by a block. A row tile is four
// neighbouring positions: three lines of six fragments, loaded two at a time. Taps times diagonal
// matrices of weights are products of 16 x 16 with 16 x 8 (two taps that were loaded together) and
// of 16 x 8 with 8 x 8 (the third); they are exact, and sums are f32.
#pragma once

#include "mhla/cuda/device/ptx.cuh"
#include "mhla/cuda/sm90/dense_position_load.cuh"
#include "mhla/cuda/sm90/dense_tile.cuh"

namespace mhla::cuda::sm90 {

// What a lane holds of the weights of its warp's 16 channels.
struct LocalWeights {
  // Column lane / 4 of diagonal matrices: [line][eight channels][taps 0, 1, 1, 2]. NOTE: the factor
  // of two taps is two neighbouring registers.
  std::uint32_t tap[3][2][4];
  float bias[2][4];  // as accumulators

  __device__ __forceinline__ void load(const PositionArgs& args, int head) {
    const int lane = threadIdx.x % 32, column = lane / 4, quad = lane % 4, width = args.dense.dv;
    const auto* weight = static_cast<const std::uint16_t*>(args.tap_weight);
    const auto* more = static_cast<const std::uint16_t*>(args.tap_bias);
    // NOTE: unknown to the compiler, which would keep one copy and move it for every product.
    const std::uint32_t zero = static_cast<std::uint32_t>(args.grid >> 30);
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      const int first = threadIdx.x / 32 % 4 * 16 + group * 8;
      // This lane has rows 2 quad and 2 quad + 1 of the column.
      const bool has = column / 2 == quad && first + column < width;
      const std::uint16_t* from = weight + (head * width + first + column) * kTaps;
#pragma unroll
      for (int i = 0; i < kTaps; ++i) {
        const std::uint32_t x = has ? __ldg(from + i) : 0u;
        std::uint32_t (&to)[4] = tap[i / 3][group];
        to[i % 3 == 2 ? 3 : i % 3] = column % 2 == 0 ? x : x << 16;
        if (i % 3 == 1) to[2] = to[1] | zero;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int channel = first + 2 * quad + i;
        const bool known = more != nullptr && channel < width;
        const std::uint32_t x = known ? __ldg(more + head * width + channel) : 0u;
        bias[group][i] = __uint_as_float(x << 16);
        bias[group][i + 2] = __uint_as_float(x << 16 | zero);
      }
    }
  }
};

// sums = start + a b, 16 x 8 x 16 and 16 x 8 x 8.
__device__ __forceinline__ void mma_taps(float (&sums)[4], const std::uint32_t (&a)[4],
                                         std::uint32_t b0, std::uint32_t b1, const float* start) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};\n"
      : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(start[0]), "f"(start[1]),
        "f"(start[2]), "f"(start[3]));
}
__device__ __forceinline__ void mma_tap(float (&sums)[4], std::uint32_t a0, std::uint32_t a1,
                                        std::uint32_t b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};\n"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(b));
}

// Six neighbouring positions of a line: [two of them][eight channels][first, second: upper, lower
// blocks]
using LocalLine = std::uint32_t[3][2][4];

// Where a lane's row of two fragments lies: it names one of the 16 blocks at one of two positions.
struct LocalRows {
  const PositionArgs& args;
  std::uint32_t zeros;
  int down, across, second;

  __device__ __forceinline__ LocalRows(const PositionArgs& args, std::uint32_t zeros)
      : args(args), zeros(zeros) {
    const int lane = threadIdx.x % 32, block = lane % 16;
    down = block / args.across;
    across = block - down * args.across;
    second = lane / 16;
  }
  // Positions x - 1 to x + 4 of line y, from -1 to the height of a block; x: a multiple of four.
  // v: both halves, one behind the other. Rows outside of the grid are zeros.
  __device__ __forceinline__ void load(LocalLine& line, std::uint32_t v, int y, int x) const {
    const int below = y < 0 ? -1 : y >= args.block_height ? 1 : 0;  // blocks
    const int top = (y - below * args.block_height) * args.block_width, row = down + below;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      int position = x + 2 * i - 1 + second, column = across;
      if (i == 0 && position < 0) position += args.block_width, --column;
      if (i == 2 && position >= args.block_width) position = 0, ++column;
      const bool inside = row >= 0 && row < args.down && column >= 0 && column < args.across;
      const int block = row * args.across + column;
      // NOTE: zeros of eight rows meet different banks, too.
      const int chunk = (threadIdx.x / 32 % 4 * 2) ^ (block & 7);
      const std::uint32_t at = (inside ? v + (top + position) * 2048 + block * 128 : zeros) +
                               chunk * 16;
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        std::uint32_t (&to)[4] = line[i][group];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(at ^ (group * 16))
                     : "memory");
      }
    }
  }
};

// Sums of a row tile: four positions by 16 channels.
struct LocalSums {
  float at[4][2][4];

  // The taps of a line. kFirst: nothing has been added, start with the bias.
  template <bool kFirst>
  __device__ __forceinline__ void add(const LocalLine& line, const std::uint32_t (&weights)[2][4],
                                      const float (&bias)[2][4]) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int i = n / 2, group = n % 2;
      const std::uint32_t (&w)[4] = weights[group];
      float (&sums)[4] = at[i][group];
      // Position i has its taps in fragments i to i + 2: two that were loaded together, and one.
      mma_taps(sums, line[(i + 1) / 2][group], w[i % 2 * 2], w[i % 2 * 2 + 1],
               kFirst ? bias[group] : sums);
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int i = n / 2, group = n % 2;
      const std::uint32_t (&a)[4] = line[i % 2 == 0 ? i / 2 + 1 : i / 2][group];
      const std::uint32_t* one = i % 2 == 0 ? a : a + 2;
      mma_tap(at[i][group], one[0], one[1], weights[group][i % 2 == 0 ? 3 : 0]);
    }
  }
  // Rounded, to a tile of outputs.
  __device__ __forceinline__ void store(std::uint32_t tile) const {
    const int lane = threadIdx.x % 32;
    const std::uint32_t to = tile + SwizzledTile<64>::chunk(lane % 16,
                                                            threadIdx.x / 32 % 4 * 2 + lane / 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t word[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        word[n] = ptx::pack_bf16(at[i][n / 2][n % 2 * 2], at[i][n / 2][n % 2 * 2 + 1]);
      }
      asm volatile(
          "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(to + i * 2048),
          "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
          : "memory");
    }
  }
};

template <typename Shared>
__device__ __forceinline__ void compute_local(const PositionArgs& args, const Shared& shared) {
  const LocalRows rows(args, shared.base + Shared::kPlan.zeros);
  const bool fours = args.block_width == 4;  // the next tile is the next line
  LocalWeights weights;
  int held = -1;  // the head that they are of: often the same one again
  for (ShortWork work(args); !work.done(); work.next()) {
    if (work.head != held) weights.load(args, held = work.head);
    // NOTE: the four slots of v are two pairs of neighbours.
    const auto va = shared.v(work.half), vb = shared.v(work.half + 1);
    va.wait_full();
    vb.wait_full();
    LocalLine line[3];
#pragma unroll
    for (int tile = 0; tile < kShortKeys / kTile; ++tile) {
      if (tile >= work.tiles()) break;
      const int position = work.row() / kPositionBlocks + tile * 4;
      const int y = fours ? position / 4 : position / args.block_width;
      const int x = position - y * args.block_width;
      LocalLine &above = line[tile % 3], &own = line[(tile + 1) % 3], &below = line[(tile + 2) % 3];
      if (tile == 0 || !fours) {
        rows.load(above, va.at, y - 1, x);
        rows.load(own, va.at, y, x);
        rows.load(below, va.at, y + 1, x);
      }
      LocalSums sums;
      sums.template add<true>(above, weights.tap[0], weights.bias);
      if (fours && tile + 1 < work.tiles()) rows.load(above, va.at, y + 2, x);
      sums.template add<false>(own, weights.tap[1], weights.bias);
      sums.template add<false>(below, weights.tap[2], weights.bias);

      const auto out = shared.o(work.tile + tile);
      out.wait_empty();
      sums.store(out.at);
      // NOTE: the fence keeps the arrival behind these stores.
      fence_async();
      release(out.full);
    }
    // NOTE: sums are stored, so that values have been read.
    release(va.empty);
    release(vb.empty);
  }
}

}  // namespace mhla::cuda::sm90
