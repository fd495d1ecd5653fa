// The feature map of focused linear attention and its gradients, one pass each over the rows; a row
// lies in the registers of up to a warp.
//
// With u = p / |p| and g = u^n / |u^n| the result is |p| g, and, e being d_out . g,
//   d_p = e u + n u^(n-1) / |u^n| (d_out - e g)
// Lengths come first: powers of u, unlike those of p, cannot overflow, and those that are not
// refused do not all vanish: the largest u of 1024 channels is 2^-5 or more.
#include "mhla/cuda/norm_rows.cuh"
#include "mhla/norms.h"

namespace mhla::cuda {
namespace {

constexpr int kThreads = 128;

struct FocusArgs {
  NormRows x, out, d_out, d_x;
  const float* factor;  // [C]
  float* sums;          // [parts, C]
  int rows, tokens, pieces, lanes, parts, part_rows, channels;
  float eps, power;
};

// p = (relu(x) + eps) * factor, of one piece; what is no number stays none.
template <typename T, int kC>
__device__ __forceinline__ void load_positive(const FocusArgs& a, const Piece<T, kC>& x, int piece,
                                              float (&p)[kC], float (&factor)[kC]) {
  Piece<float, kC> from;
  from.load(reinterpret_cast<const char*>(a.factor), piece);
  from.get(factor);
  x.get(p);
#pragma unroll
  for (int c = 0; c < kC; ++c) p[c] = ((p[c] < 0.f ? 0.f : p[c]) + a.eps) * factor[c];
}

// u^(n-1); kPower is n, or 0 where only the arguments know it.
template <int kPower>
__device__ __forceinline__ float slope(float u, float power) {
  static_assert(kPower == 0 || kPower == 3);
  return kPower == 3 ? u * u : powf(u, power - 1.f);
}

template <typename T, int kEach, int kPower>
__global__ void __launch_bounds__(kThreads) focus_kernel(const FocusArgs a) {
  constexpr int kC = kChunk<T>;
  const int lane = static_cast<int>(threadIdx.x) % a.lanes;
  const int at = static_cast<int>(blockIdx.x) * (kThreads / a.lanes) +
                 static_cast<int>(threadIdx.x) / a.lanes;
  const bool live = at < a.rows;  // the others take part in the shuffles of their warp
  const int row = live ? at : a.rows - 1;
  const int b = row / a.tokens, n = row - b * a.tokens;
  const auto piece_of = [&](int i) { return lane + i * a.lanes; };
  const auto inside = [&](int i) { return piece_of(i) < a.pieces; };

  Piece<T, kC> x[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (inside(i)) x[i].load(a.x.at(b, n), piece_of(i));
  }

  // |p|
  float p[kEach][kC], squares = 0.f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!inside(i)) continue;
    float factor[kC];
    load_positive(a, x[i], piece_of(i), p[i], factor);
#pragma unroll
    for (int c = 0; c < kC; ++c) squares = fmaf(p[i][c], p[i][c], squares);
  }
  const float length = sqrtf(row_sum(squares, a.lanes)), over_length = 1.f / length;

  // u^n and its length
  squares = 0.f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!inside(i)) continue;
#pragma unroll
    for (int c = 0; c < kC; ++c) {
      const float u = p[i][c] * over_length;
      p[i][c] = slope<kPower>(u, a.power) * u;
      squares = fmaf(p[i][c], p[i][c], squares);
    }
  }
  const float stretch = length / sqrtf(row_sum(squares, a.lanes));
  if (!live) return;

#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!inside(i)) continue;
#pragma unroll
    for (int c = 0; c < kC; ++c) p[i][c] *= stretch;
    Piece<T, kC> y;
    y.set(p[i]);
    y.store(a.out.at(b, n), piece_of(i));
  }
}

// A thread block takes one part of the rows, and adds d_p (relu(x) + eps) up over it.
template <typename T, int kEach, int kPower>
__global__ void __launch_bounds__(kThreads) focus_backward_kernel(const FocusArgs a) {
  constexpr int kC = kChunk<T>;
  __shared__ float all[kThreads * kEach * kC];  // [slots, C]
  const int lane = static_cast<int>(threadIdx.x) % a.lanes;
  const int slot = static_cast<int>(threadIdx.x) / a.lanes, slots = kThreads / a.lanes;
  const int begin = static_cast<int>(blockIdx.x) * a.part_rows;
  const int end = min(a.rows, begin + a.part_rows);
  const auto piece_of = [&](int i) { return lane + i * a.lanes; };
  const auto inside = [&](int i) { return piece_of(i) < a.pieces; };

  float sum[kEach][kC] = {};
  for (int first = begin; first < end; first += slots) {
    const bool live = first + slot < end;
    const int row = live ? first + slot : end - 1;
    const int b = row / a.tokens, n = row - b * a.tokens;
    Piece<T, kC> x[kEach], d_out[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!inside(i)) continue;
      x[i].load(a.x.at(b, n), piece_of(i));
      d_out[i].load(a.d_out.at(b, n), piece_of(i));
    }

    // |p|
    float p[kC], d[kC], factor[kC], squares = 0.f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!inside(i)) continue;
      load_positive(a, x[i], piece_of(i), p, factor);
#pragma unroll
      for (int c = 0; c < kC; ++c) squares = fmaf(p[c], p[c], squares);
    }
    const float over_length = 1.f / sqrtf(row_sum(squares, a.lanes));

    // |u^n| and e
    float product = 0.f;
    squares = 0.f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!inside(i)) continue;
      load_positive(a, x[i], piece_of(i), p, factor);
      d_out[i].get(d);
#pragma unroll
      for (int c = 0; c < kC; ++c) {
        const float u = p[c] * over_length, sharp = slope<kPower>(u, a.power) * u;
        squares = fmaf(sharp, sharp, squares);
        product = fmaf(d[c], sharp, product);
      }
    }
    const float over_sharp = 1.f / sqrtf(row_sum(squares, a.lanes));
    const float e = row_sum(product, a.lanes) * over_sharp;
    if (!live) continue;

    // d_p, d_x and the sums
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!inside(i)) continue;
      float from[kC];
      x[i].get(from);
      load_positive(a, x[i], piece_of(i), p, factor);
      d_out[i].get(d);
#pragma unroll
      for (int c = 0; c < kC; ++c) {
        const float u = p[c] * over_length, steep = slope<kPower>(u, a.power) * over_sharp;
        const float d_p = fmaf(e, u, a.power * steep * fmaf(-e, steep * u, d[c]));
        sum[i][c] = fmaf(d_p, (from[c] < 0.f ? 0.f : from[c]) + a.eps, sum[i][c]);
        d[c] = from[c] <= 0.f ? 0.f : d_p * factor[c];
      }
      Piece<T, kC> d_x;
      d_x.set(d);
      d_x.store(a.d_x.at(b, n), piece_of(i));
    }
  }
  if (!a.sums) return;

  // Over the rows that were added up side by side
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!inside(i)) continue;
#pragma unroll
    for (int c = 0; c < kC; ++c) all[slot * a.channels + piece_of(i) * kC + c] = sum[i][c];
  }
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < a.channels; c += kThreads) {
    float total = 0.f;
    for (int j = 0; j < slots; ++j) total += all[j * a.channels + c];
    a.sums[static_cast<std::int64_t>(blockIdx.x) * a.channels + c] = total;
  }
}

template <typename T, int kEach>
void launch_focus(const FocusArgs& a, bool backward, Stream stream) {
  const bool cube = a.power == 3.f;
  const auto run = [&](void (*kernel)(FocusArgs), int blocks) {
    launch(kernel, {blocks}, kThreads, 0, stream, a);
  };
  if (backward) {
    return run(cube ? focus_backward_kernel<T, kEach, 3> : focus_backward_kernel<T, kEach, 0>,
               a.parts);
  }
  const int each_block = kThreads / a.lanes;
  run(cube ? focus_kernel<T, kEach, 3> : focus_kernel<T, kEach, 0>,
      (a.rows + each_block - 1) / each_block);
}

template <typename T>
void run_focus(FocusArgs& a, bool backward, Stream stream) {
  constexpr int kMost = sizeof(T) == 4 ? 8 : 4;  // 1024 channels
  a.pieces = a.channels / kChunk<T>;
  const RowSplit split = split_row<kMost>(a.pieces);
  a.lanes = split.lanes;
  if constexpr (kMost == 8) {
    if (split.each > 6) return launch_focus<T, 8>(a, backward, stream);
    if (split.each > 4) return launch_focus<T, 6>(a, backward, stream);
  }
  if (split.each == 4) return launch_focus<T, 4>(a, backward, stream);
  if (split.each == 3) return launch_focus<T, 3>(a, backward, stream);
  launch_focus<T, 2>(a, backward, stream);
}

FocusArgs arguments_of(const TensorView& x, const TensorView& factor, double power, double eps) {
  FocusArgs a{};
  a.x = norm_rows(x);
  a.factor = static_cast<const float*>(factor.data);
  a.tokens = static_cast<int>(x.shape[1]);
  a.rows = static_cast<int>(x.shape[0]) * a.tokens;
  a.channels = static_cast<int>(x.shape[2]);
  a.power = static_cast<float>(power), a.eps = static_cast<float>(eps);
  return a;
}

void run(FocusArgs& a, const TensorView& x, bool backward, Stream stream) {
  const DeviceGuard guard(x.device.index);
  switch (x.dtype) {
    case DType::bf16: return run_focus<bf16>(a, backward, stream);
    case DType::f16: return run_focus<f16>(a, backward, stream);
    default: return run_focus<float>(a, backward, stream);
  }
}

}  // namespace
}  // namespace mhla::cuda

namespace mhla {

void focus(const Focus& call, Stream stream) {
  if (const std::string why = refusal(call); !why.empty()) fail("focus", why);
  cuda::FocusArgs a = cuda::arguments_of(call.x, call.factor, call.power, call.eps);
  a.out = cuda::norm_rows(call.out);
  cuda::run(a, call.x, /*backward=*/false, stream);
}

void focus_backward(const FocusBackward& call, Stream stream) {
  if (const std::string why = refusal(call); !why.empty()) fail("focus_backward", why);
  cuda::FocusArgs a = cuda::arguments_of(call.x, call.factor, call.power, call.eps);
  a.d_out = cuda::norm_rows(call.d_out), a.d_x = cuda::norm_rows(call.d_x);
  a.parts = static_cast<int>(focus_parts(a.rows));
  a.part_rows = (a.rows + a.parts - 1) / a.parts;  // the last parts may be empty
  a.sums = static_cast<float*>(call.sums.data);
  cuda::run(a, call.x, /*backward=*/true, stream);
}

}  // namespace mhla
