// The instructions of src/mhla/cuda/device/ptx.cuh, emulated. Products are summed in f64.
#pragma once

#include <cuda_runtime.h>

#include "emulator.h"
#include "mhla/core/half.h"

namespace mhla::cuda::ptx {

inline void copy_async(void* shared, const void* global, bool valid) {
  emulator::copy(shared, global, valid);
}
inline void copy_commit() { emulator::commit(); }
template <int kPending>
void copy_wait() {
  emulator::wait(kPending);
}

template <int kTiles>
void load_tiles(std::uint32_t (&r)[kTiles], const void* row, bool transposed) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) emulator::stop("a misaligned ldmatrix");
  emulator::Lane* lanes = emulator::warp();
  const int lane = emulator::lane();
  lanes[lane].row = row;
  emulator::sync_warp();
  for (int tile = 0; tile < kTiles; ++tile) {
    const auto element = [&](int i, int j) -> std::uint32_t {
      return static_cast<const std::uint16_t*>(lanes[tile * 8 + i].row)[j];
    };
    const int i = lane / 4, j = lane % 4 * 2;
    r[tile] = transposed ? element(j, i) | element(j + 1, i) << 16
                         : element(i, j) | element(i, j + 1) << 16;
  }
  emulator::sync_warp();
}
inline void load_matrix(std::uint32_t (&r)[4], const void* row) { load_tiles(r, row, false); }
inline void load_matrix_transposed(std::uint32_t (&r)[4], const void* row) {
  load_tiles(r, row, true);
}
inline void load_matrix_pair_transposed(std::uint32_t (&r)[2], const void* row) {
  load_tiles(r, row, true);
}

// a(lanes, m, k) and b(lanes, k, n) read operands out of the registers of the lanes.
template <typename A, typename B>
void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
              int depth, A&& left, B&& right) {
  emulator::Lane* lanes = emulator::warp();
  const int lane = emulator::lane();
  for (int i = 0; i < 4; ++i) lanes[lane].a[i] = a[i];
  lanes[lane].b[0] = b0;
  lanes[lane].b[1] = b1;
  emulator::sync_warp();
  for (int e = 0; e < 4; ++e) {
    const int m = lane / 4 + e / 2 * 8, n = lane % 4 * 2 + e % 2;
    double sum = 0;
    for (int k = 0; k < depth; ++k) {
      sum += static_cast<double>(left(lanes, m, k)) * right(lanes, k, n);
    }
    c[e] += static_cast<float>(sum);
  }
  emulator::sync_warp();
}

template <typename Convert>
void multiply_16bit(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                    Convert&& convert) {
  const auto half = [&](std::uint32_t word, int k) {
    return convert(static_cast<std::uint16_t>(k % 2 ? word >> 16 : word));
  };
  multiply(
      c, a, b0, b1, 16,
      [&](const emulator::Lane* lanes, int m, int k) {
        return half(lanes[m % 8 * 4 + k % 8 / 2].a[m / 8 + k / 8 * 2], k);
      },
      [&](const emulator::Lane* lanes, int k, int n) {
        return half(lanes[n * 4 + k % 8 / 2].b[k / 8], k);
      });
}
inline void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                     std::uint32_t b1) {
  multiply_16bit(c, a, b0, b1, [](std::uint16_t x) { return mhla::to_float(BFloat16{x}); });
}
inline void mma_f16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                    std::uint32_t b1) {
  multiply_16bit(c, a, b0, b1, [](std::uint16_t x) { return mhla::to_float(Float16{x}); });
}
inline void mma_tf32(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                     std::uint32_t b1) {
  multiply(
      c, a, b0, b1, 8,
      [](const emulator::Lane* lanes, int m, int k) {
        return __uint_as_float(lanes[m % 8 * 4 + k % 4].a[m / 8 + k / 4 * 2]);
      },
      [](const emulator::Lane* lanes, int k, int n) {
        return __uint_as_float(lanes[n * 4 + k % 4].b[k / 4]);
      });
}

inline std::uint32_t pack_bf16(float lo, float hi) {
  return to_bfloat16(lo).bits | static_cast<std::uint32_t>(to_bfloat16(hi).bits) << 16;
}
inline std::uint32_t pack_f16(float lo, float hi) {
  return to_float16(lo).bits | static_cast<std::uint32_t>(to_float16(hi).bits) << 16;
}
inline float from_f16(std::uint16_t bits) { return mhla::to_float(Float16{bits}); }
inline std::uint32_t round_tf32(float x) { return (__float_as_uint(x) + 0x1000u) & ~0x1fffu; }

template <typename F>
std::uint32_t for_both_halves(F&& f) {
  const auto half = [&](int shift) {
    return f([shift](std::uint32_t word) {
      return mhla::to_float(BFloat16{static_cast<std::uint16_t>(word >> shift)});
    });
  };
  return pack_bf16(half(0), half(16));
}
inline std::uint32_t fma_bf16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  return for_both_halves(
      [&](auto x) { return static_cast<float>(static_cast<double>(x(a)) * x(b) + x(c)); });
}
inline std::uint32_t max_bf16x2(std::uint32_t a, std::uint32_t b) {
  return for_both_halves([&](auto x) { return x(a) != x(a) || x(a) > x(b) ? x(a) : x(b); });
}

template <typename T>
T broadcast(T x, int from) {
  emulator::Lane* lanes = emulator::warp();
  std::memcpy(&lanes[emulator::lane()].word, &x, 4);
  emulator::sync_warp();
  T result;
  std::memcpy(&result, &lanes[from].word, 4);
  emulator::sync_warp();
  return result;
}
inline float exchange(float x, int mask) { return broadcast(x, emulator::lane() ^ mask); }
inline float sum_of_warp(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += exchange(x, offset);
  return x;
}
inline void sync_warp() { emulator::sync_warp(); }
inline void sync_warps(int barrier, int threads) { emulator::sync_warps(barrier, threads); }
inline void begin_after_previous() {}

}  // namespace mhla::cuda::ptx
