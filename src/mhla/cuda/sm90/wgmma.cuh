// Products of a warpgroup (4 warps) on the tensor cores of sm_90a, and their shared-memory
// operands.
//
// An operand is a tile of 64 tokens stored as 8x8 "core matrices" of 128 contiguous bytes:
// [8 token groups][chunks of 8 columns][8 tokens][8 columns]. The same bytes are read with the
// columns as inner dimension (scores) or with the tokens as inner dimension (outputs): only the two
// strides of the descriptor swap. No swizzle: a core matrix covers all 32 banks once.
#pragma once

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/device/types.cuh"

namespace mhla::cuda::sm90 {

inline constexpr int kCore = 128;  // bytes of a core matrix

// Where an operand starts and the byte strides between its core matrices: `inner` along the
// dimension that is summed over, `outer` along the other. All but the address is known to the
// compiler, so a descriptor costs one addition.
struct Operand {
  std::uint32_t low, high;
};
__device__ __forceinline__ Operand operand(std::uint32_t tile, int offset, int inner, int outer) {
  return {(tile >> 4) + static_cast<std::uint32_t>((offset >> 4) | (inner >> 4) << 16),
          static_cast<std::uint32_t>(outer >> 4)};
}

// Inner dimension = 16 columns, chunks 2 * step and 2 * step + 1. With an odd number of chunks the
// last one is read twice; the other factor is zero there.
template <int kChunks>
__device__ __forceinline__ Operand columns_inner(std::uint32_t tile, int step) {
  const bool lone = kChunks % 2 != 0 && 2 * step + 1 == kChunks;
  return operand(tile, 2 * step * kCore, lone ? 0 : kCore, kChunks * kCore);
}
// Inner dimension = tokens 16 * step and on, outer = all columns.
template <int kChunks>
__device__ __forceinline__ Operand tokens_inner(std::uint32_t tile, int step) {
  return operand(tile, 2 * step * kChunks * kCore, kChunks * kCore, kCore);
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// After a wait: no use of the sums moves before it.
template <int kSize>
__device__ __forceinline__ void hold(float (&d)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Operand lists of 4 accumulators a group of 8 columns.
#define MHLA_R1 "%0,%1,%2,%3"
#define MHLA_R2 MHLA_R1 ",%4,%5,%6,%7"
#define MHLA_R4 MHLA_R2 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define MHLA_R5 MHLA_R4 ",%16,%17,%18,%19"
#define MHLA_R8 MHLA_R5 ",%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define MHLA_R9 MHLA_R8 ",%32,%33,%34,%35"
#define MHLA_R10 MHLA_R9 ",%36,%37,%38,%39"
#define MHLA_R12 MHLA_R10 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define MHLA_R13 MHLA_R12 ",%48,%49,%50,%51"
#define MHLA_R16 MHLA_R13 ",%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define MHLA_R17 MHLA_R16 ",%64,%65,%66,%67"
#define MHLA_R32                                                 \
  MHLA_R17                                                       \
  ",%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"             \
  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91"             \
  ",%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103"         \
  ",%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115" \
  ",%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define MHLA_G(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3])
#define MHLA_D1(C) MHLA_G(C, 0)
#define MHLA_D2(C) MHLA_G(C, 0), MHLA_G(C, 4)
#define MHLA_D4(C) MHLA_D2(C), MHLA_G(C, 8), MHLA_G(C, 12)
#define MHLA_D5(C) MHLA_D4(C), MHLA_G(C, 16)
#define MHLA_D8(C) MHLA_D5(C), MHLA_G(C, 20), MHLA_G(C, 24), MHLA_G(C, 28)
#define MHLA_D9(C) MHLA_D8(C), MHLA_G(C, 32)
#define MHLA_D10(C) MHLA_D9(C), MHLA_G(C, 36)
#define MHLA_D12(C) MHLA_D10(C), MHLA_G(C, 40), MHLA_G(C, 44)
#define MHLA_D13(C) MHLA_D12(C), MHLA_G(C, 48)
#define MHLA_D16(C) MHLA_D13(C), MHLA_G(C, 52), MHLA_G(C, 56), MHLA_G(C, 60)
#define MHLA_D17(C) MHLA_D16(C), MHLA_G(C, 64)
#define MHLA_D32(C)                                                                                \
  MHLA_D17(C), MHLA_G(C, 68), MHLA_G(C, 72), MHLA_G(C, 76), MHLA_G(C, 80), MHLA_G(C, 84),          \
      MHLA_G(C, 88), MHLA_G(C, 92), MHLA_G(C, 96), MHLA_G(C, 100), MHLA_G(C, 104), MHLA_G(C, 108), \
      MHLA_G(C, 112), MHLA_G(C, 116), MHLA_G(C, 120), MHLA_G(C, 124)
#define MHLA_INOUT "+f"
#define MHLA_OUT "=f"
// NOTE: the first product of a sum writes its accumulators only ("=f"), so that their registers are
// free while the previous sum is being used.
#define MHLA_WGMMA_ASM(N, G, TYPE, C, ACC, A0, A1, A2, A3, B0, B1, P, T)                        \
  asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %" #P                            \
               ", 0;\n"                                                                         \
               "mov.b64 b, {%" #B0 ", %" #B1                                                    \
               "};\n"                                                                           \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" MHLA_R##G   \
               "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, b, p, 1, 1, %" #T ";\n}\n"            \
               : MHLA_D##G(C)                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high), "n"(ACC), \
                 "n"(kTokensInner))
#define MHLA_WGMMA(N, G, ...)                                        \
  if constexpr (kN == N && std::is_same_v<T, bf16> && kAccumulate) { \
    MHLA_WGMMA_ASM(N, G, "bf16", MHLA_INOUT, 1, __VA_ARGS__);        \
  } else if constexpr (kN == N && std::is_same_v<T, bf16>) {         \
    MHLA_WGMMA_ASM(N, G, "bf16", MHLA_OUT, 0, __VA_ARGS__);          \
  } else if constexpr (kN == N && kAccumulate) {                     \
    MHLA_WGMMA_ASM(N, G, "f16", MHLA_INOUT, 1, __VA_ARGS__);         \
  } else if constexpr (kN == N) {                                    \
    MHLA_WGMMA_ASM(N, G, "f16", MHLA_OUT, 0, __VA_ARGS__);           \
  }

// d[64 x kN] = or += a[64 x 16] b[16 x kN]; a from registers (fragments of mma.m16n8k16, one warp
// for 16 rows), b from shared memory.
template <typename T, int kN, bool kTokensInner, bool kAccumulate>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], const std::uint32_t (&a)[4],
                                      const Operand& b) {
  MHLA_WGMMA(8, 1, 4, 5, 6, 7, 8, 9, 10, 11);
  MHLA_WGMMA(16, 2, 8, 9, 10, 11, 12, 13, 14, 15);
  MHLA_WGMMA(32, 4, 16, 17, 18, 19, 20, 21, 22, 23);
  MHLA_WGMMA(40, 5, 20, 21, 22, 23, 24, 25, 26, 27);
  MHLA_WGMMA(64, 8, 32, 33, 34, 35, 36, 37, 38, 39);
  MHLA_WGMMA(72, 9, 36, 37, 38, 39, 40, 41, 42, 43);
  MHLA_WGMMA(80, 10, 40, 41, 42, 43, 44, 45, 46, 47);
  MHLA_WGMMA(96, 12, 48, 49, 50, 51, 52, 53, 54, 55);
  MHLA_WGMMA(104, 13, 52, 53, 54, 55, 56, 57, 58, 59);
  MHLA_WGMMA(128, 16, 64, 65, 66, 67, 68, 69, 70, 71);
  MHLA_WGMMA(136, 17, 68, 69, 70, 71, 72, 73, 74, 75);
  MHLA_WGMMA(256, 32, 128, 129, 130, 131, 132, 133, 134, 135);
}

// d[64 x 32] = a[64 x 16] b[16 x 32] over an earlier sum that has been read. NOTE: with new
// registers instead (wgmma<..., false>) ptxas may delay reading and keep every sum of an unrolled
// loop.
template <typename T>
__device__ __forceinline__ void wgmma_over(float (&d)[16], const std::uint32_t (&a)[4],
                                           const Operand& b) {
  constexpr int kTokensInner = 0;
  if constexpr (std::is_same_v<T, bf16>) {
    MHLA_WGMMA_ASM(32, 4, "bf16", MHLA_INOUT, 0, 16, 17, 18, 19, 20, 21, 22, 23);
  } else {
    MHLA_WGMMA_ASM(32, 4, "f16", MHLA_INOUT, 0, 16, 17, 18, 19, 20, 21, 22, 23);
  }
}

#define MHLA_WGMMA_IF_ASM(N, G, A0, A1, A2, A3, B0, B1, P)                            \
  asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %" #P                  \
               ", 0;\n"                                                               \
               "mov.b64 b, {%" #B0 ", %" #B1                                          \
               "};\n"                                                                 \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" MHLA_R##G \
               "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, b, p, 1, 1, 1;\n}\n"        \
               : MHLA_D##G(MHLA_INOUT)                                                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high), \
                 "r"(accumulate))

// d[64 x kN] = or += a[64 x 16] b[16 x kN] in bf16, b with the tokens inner, as a number says that
// is not known to the compiler: sums need not be cleared, which would end a row of products.
template <int kN>
__device__ __forceinline__ void wgmma_if(float (&d)[kN / 2], const std::uint32_t (&a)[4],
                                         const Operand& b, int accumulate) {
  static_assert(kN == 64 || kN == 128);
  if constexpr (kN == 64) MHLA_WGMMA_IF_ASM(64, 8, 32, 33, 34, 35, 36, 37, 38);
  if constexpr (kN == 128) MHLA_WGMMA_IF_ASM(128, 16, 64, 65, 66, 67, 68, 69, 70);
}

#define MHLA_WGMMA_SHARED_ASM(N, G, TYPE, C, ACC, A0, A1, B0, B1, P)                          \
  asm volatile("{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %" #P                       \
               ", 0;\n"                                                                       \
               "mov.b64 a, {%" #A0 ", %" #A1 "};\nmov.b64 b, {%" #B0 ", %" #B1                \
               "};\n"                                                                         \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" MHLA_R##G \
               "}, a, b, p, 1, 1, 0, 0;\n}\n"                                                 \
               : MHLA_D##G(C)                                                                 \
               : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high), "n"(ACC))
#define MHLA_WGMMA_SHARED(N, G, ...)                                 \
  if constexpr (kN == N && std::is_same_v<T, bf16> && kAccumulate) { \
    MHLA_WGMMA_SHARED_ASM(N, G, "bf16", MHLA_INOUT, 1, __VA_ARGS__); \
  } else if constexpr (kN == N && std::is_same_v<T, bf16>) {         \
    MHLA_WGMMA_SHARED_ASM(N, G, "bf16", MHLA_OUT, 0, __VA_ARGS__);   \
  } else if constexpr (kN == N && kAccumulate) {                     \
    MHLA_WGMMA_SHARED_ASM(N, G, "f16", MHLA_INOUT, 1, __VA_ARGS__);  \
  } else if constexpr (kN == N) {                                    \
    MHLA_WGMMA_SHARED_ASM(N, G, "f16", MHLA_OUT, 0, __VA_ARGS__);    \
  }

// d[64 x kN] = or += a[64 x 16] b[16 x kN], both from shared memory with the columns inner.
template <typename T, bool kAccumulate, int kSize>
__device__ __forceinline__ void wgmma_shared(float (&d)[kSize], const Operand& a,
                                             const Operand& b) {
  constexpr int kN = 2 * kSize;
  static_assert(kN == 32 || kN == 64 || kN == 128 || kN == 256);
  MHLA_WGMMA_SHARED(32, 4, 16, 17, 18, 19, 20);
  MHLA_WGMMA_SHARED(64, 8, 32, 33, 34, 35, 36);
  MHLA_WGMMA_SHARED(128, 16, 64, 65, 66, 67, 68);
  MHLA_WGMMA_SHARED(256, 32, 128, 129, 130, 131, 132);
}

#define MHLA_WGMMA_COLUMNS_ASM(C, ACC)                                 \
  asm volatile(                                                        \
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %36, 0;\n"    \
      "mov.b64 a, {%32, %33};\nmov.b64 b, {%34, %35};\n"               \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" MHLA_R8 \
      "}, a, b, p, 1, 1, 1, 1;\n}\n"                                   \
      : MHLA_D8(C)                                                     \
      : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high), "n"(ACC))

// d[64 x 64] = or += a[64 x 16] b[16 x 64] in bf16, both from shared memory with the tokens inner:
// columns of one tile with columns of another.
template <bool kAccumulate>
__device__ __forceinline__ void wgmma_columns(float (&d)[32], const Operand& a, const Operand& b) {
  if constexpr (kAccumulate) {
    MHLA_WGMMA_COLUMNS_ASM(MHLA_INOUT, 1);
  } else {
    MHLA_WGMMA_COLUMNS_ASM(MHLA_OUT, 0);
  }
}

#define MHLA_WGMMA_TF32(N, G, A0, A1, A2, A3, B0, B1)                       \
  asm volatile(                                                             \
      "{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, 1, 0;\n"              \
      "mov.b64 b, {%" #B0 ", %" #B1                                         \
      "};\n"                                                                \
      "wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" MHLA_R##G \
      "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, b, p, 1, 1;\n}\n"          \
      : MHLA_D##G(MHLA_INOUT)                                               \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high))

// d[64 x kN] += a[64 x 8] b[8 x kN] in tf32. a is an accumulator group of 8 columns as it lies in
// the registers of a product, which takes its columns in the order 0, 2, 4, 6, 1, 3, 5, 7.
template <int kN>
__device__ __forceinline__ void wgmma_tf32(float (&d)[kN / 2], const std::uint32_t (&a)[4],
                                           const Operand& b) {
  static_assert(kN == 16 || kN == 64);
  if constexpr (kN == 16) MHLA_WGMMA_TF32(16, 2, 8, 9, 10, 11, 12, 13);
  if constexpr (kN == 64) MHLA_WGMMA_TF32(64, 8, 32, 33, 34, 35, 36, 37);
}

}  // namespace mhla::cuda::sm90
