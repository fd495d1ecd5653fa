// Gradients of norms.h: one pass by rows for the tokens, one by columns for the parameters.
#include "mhla/cuda/norm_rows.cuh"
#include "mhla/norms.h"

namespace mhla::cuda {
namespace {

constexpr int kThreads = 128;
// The pass by columns: a warp side by side, its threads' pieces of as many tokens at a time.
constexpr int kStrip = 32, kDeep = 8;

struct NormBackwardArgs {
  NormRows x, branch, d_out, d_sum, d_x, d_branch;
  NormVector gate, weight, scale;
  const float2* statistics;
  float* sums;  // [3, B, parts, C]
  std::int64_t sums_step;
  int batch, rows, tokens, pieces, lanes, parts, part_tokens, channels;
  float over_width;
  bool rms, has_branch, has_d_sum, has_d_branch;
};

template <typename TX, typename TY, int kEach>
__global__ void __launch_bounds__(kThreads) norm_backward_kernel(const NormBackwardArgs a) {
  constexpr int kC = kChunk<TY>;
  const int lane = static_cast<int>(threadIdx.x) % a.lanes;
  const int at = static_cast<int>(blockIdx.x) * (kThreads / a.lanes) +
                 static_cast<int>(threadIdx.x) / a.lanes;
  const bool live = at < a.rows;
  const int row = live ? at : a.rows - 1;
  const int b = row / a.tokens, n = row - b * a.tokens;
  const auto piece_of = [&](int i) { return lane + i * a.lanes; };
  const auto inside = [&](int i) { return piece_of(i) < a.pieces; };

  Piece<TX, kC> x[kEach];
  Piece<TY, kC> d_out[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!inside(i)) continue;
    x[i].load(a.x.at(b, n), piece_of(i));
    d_out[i].load(a.d_out.at(b, n), piece_of(i));
  }
  const float2 statistic = a.statistics[row];
  const float mean = statistic.x, factor = statistic.y;

  // d = the gradient of the normalised row, and its two means
  float d[kEach][kC], sum = 0.f, product = 0.f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!inside(i)) continue;
    float p[kC], y[kC];
    d_out[i].get(d[i]);
    x[i].get(y);
    if (a.weight.data) {
      load_vector(a.weight, 0, piece_of(i), p);
#pragma unroll
      for (int c = 0; c < kC; ++c) d[i][c] *= p[c];
    }
    if (a.scale.data) {
      load_vector(a.scale, b, piece_of(i), p);
#pragma unroll
      for (int c = 0; c < kC; ++c) d[i][c] = fmaf(d[i][c], p[c], d[i][c]);
    }
#pragma unroll
    for (int c = 0; c < kC; ++c) {
      sum += d[i][c];
      product = fmaf(d[i][c], (y[c] - mean) * factor, product);
    }
  }
  sum = a.rms ? 0.f : row_sum(sum, a.lanes) * a.over_width;
  product = row_sum(product, a.lanes) * a.over_width;
  if (!live) return;

#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!inside(i)) continue;
    float y[kC], p[kC];
    x[i].get(y);
#pragma unroll
    for (int c = 0; c < kC; ++c) {
      d[i][c] = factor * (d[i][c] - sum - (y[c] - mean) * factor * product);
    }
    if (a.has_d_sum) {
      Piece<TX, kC> more;
      more.load(a.d_sum.at(b, n), piece_of(i));
      more.get(p);
#pragma unroll
      for (int c = 0; c < kC; ++c) d[i][c] += p[c];
    }
    Piece<TX, kC> d_x;
    d_x.set(d[i]);
    d_x.store(a.d_x.at(b, n), piece_of(i));
    if (a.has_d_branch) {
      if (a.gate.data) {
        load_vector(a.gate, b, piece_of(i), p);
#pragma unroll
        for (int c = 0; c < kC; ++c) d[i][c] *= p[c];
      }
      Piece<TY, kC> d_branch;
      d_branch.set(d[i]);
      d_branch.store(a.d_branch.at(b, n), piece_of(i));
    }
  }
}

// A thread block adds up a part of a sample's tokens, for kStrip pieces of channels.
template <typename TX, typename TY>
__global__ void __launch_bounds__(kStrip* kDeep) norm_sums_kernel(const NormBackwardArgs a) {
  constexpr int kC = kChunk<TY>;
  __shared__ float all[kDeep][3][kStrip * kC];
  const int lane = static_cast<int>(threadIdx.x) % kStrip;
  const int depth = static_cast<int>(threadIdx.x) / kStrip;
  const int part = static_cast<int>(blockIdx.x), b = static_cast<int>(blockIdx.z);
  const int piece = static_cast<int>(blockIdx.y) * kStrip + lane;
  float sum[3][kC] = {};
  if (piece < a.pieces) {
    const int end = min(a.tokens, (part + 1) * a.part_tokens);
    for (int n = part * a.part_tokens + depth; n < end; n += kDeep) {
      Piece<TX, kC> x, d_x;
      Piece<TY, kC> d_out, branch;
      x.load(a.x.at(b, n), piece);
      d_out.load(a.d_out.at(b, n), piece);
      if (a.has_branch) d_x.load(a.d_x.at(b, n), piece), branch.load(a.branch.at(b, n), piece);
      const float2 statistic = a.statistics[b * a.tokens + n];
      float p[kC], q[kC];
      x.get(p);
      d_out.get(q);
#pragma unroll
      for (int c = 0; c < kC; ++c) {
        sum[0][c] += q[c];
        sum[1][c] = fmaf(q[c], (p[c] - statistic.x) * statistic.y, sum[1][c]);
      }
      if (!a.has_branch) continue;
      d_x.get(p);
      branch.get(q);
#pragma unroll
      for (int c = 0; c < kC; ++c) sum[2][c] = fmaf(p[c], q[c], sum[2][c]);
    }
  }
#pragma unroll
  for (int k = 0; k < 3; ++k) {
#pragma unroll
    for (int c = 0; c < kC; ++c) all[depth][k][lane * kC + c] = sum[k][c];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 3 * kStrip * kC; i += kStrip * kDeep) {
    const int k = i / (kStrip * kC), c = i % (kStrip * kC);
    const int channel = static_cast<int>(blockIdx.y) * kStrip * kC + c;
    if (channel >= a.channels) continue;
    float total = 0.f;
#pragma unroll
    for (int j = 0; j < kDeep; ++j) total += all[j][k][c];
    a.sums[k * a.sums_step + (static_cast<std::int64_t>(b) * a.parts + part) * a.channels +
           channel] = total;
  }
}

template <typename TX, typename TY>
void run_backward(NormBackwardArgs& a, Stream stream) {
  constexpr int kMost = sizeof(TY) == 4 ? 16 : 8;
  a.pieces = a.channels / kChunk<TY>;
  const RowSplit split = split_row<kMost>(a.pieces);
  a.lanes = split.lanes;
  const auto by_rows = [&] {
    const auto run = [&](void (*kernel)(NormBackwardArgs)) {
      const int each_block = kThreads / a.lanes;
      launch(kernel, {(a.rows + each_block - 1) / each_block}, kThreads, 0, stream, a);
    };
    if constexpr (kMost == 16) {
      if (split.each > 8) return run(norm_backward_kernel<TX, TY, 16>);
    }
    if (split.each > 6) return run(norm_backward_kernel<TX, TY, 8>);
    if (split.each > 3) return run(norm_backward_kernel<TX, TY, 6>);
    run(split.each == 3 ? norm_backward_kernel<TX, TY, 3> : norm_backward_kernel<TX, TY, 2>);
  };
  by_rows();
  if (!a.sums) return;
  launch(norm_sums_kernel<TX, TY>, {a.parts, (a.pieces + kStrip - 1) / kStrip, a.batch},
         kStrip * kDeep, 0, stream, a);
}

NormBackwardArgs arguments_of(const RowNormBackward& call) {
  NormBackwardArgs a{};
  a.x = norm_rows(call.x), a.d_out = norm_rows(call.d_out), a.d_x = norm_rows(call.d_x);
  a.has_branch = call.branch.defined(), a.has_d_sum = call.d_sum.defined();
  a.has_d_branch = call.d_branch.defined();
  if (a.has_branch) a.branch = norm_rows(call.branch);
  if (a.has_d_sum) a.d_sum = norm_rows(call.d_sum);
  if (a.has_d_branch) a.d_branch = norm_rows(call.d_branch);
  a.gate = norm_vector(call.gate), a.weight = norm_vector(call.weight);
  a.scale = norm_vector(call.scale);
  a.statistics = static_cast<const float2*>(call.statistics.data);
  a.batch = static_cast<int>(call.x.shape[0]), a.tokens = static_cast<int>(call.x.shape[1]);
  a.channels = static_cast<int>(call.x.shape[2]);
  a.rows = a.batch * a.tokens;
  a.over_width = 1.f / static_cast<float>(a.channels);
  a.rms = call.rms;
  if (call.sums.defined()) {
    a.sums = static_cast<float*>(call.sums.data), a.sums_step = call.sums.strides[0];
    a.parts = static_cast<int>(call.sums.shape[2]);
    a.part_tokens = (a.tokens + a.parts - 1) / a.parts;
  }
  return a;
}

}  // namespace
}  // namespace mhla::cuda

namespace mhla {

void row_norm_backward(const RowNormBackward& call, Stream stream) {
  if (const std::string why = refusal(call); !why.empty()) fail("row_norm_backward", why);
  const cuda::DeviceGuard guard(call.x.device.index);
  cuda::NormBackwardArgs a = cuda::arguments_of(call);
  const bool wide = call.x.dtype == DType::f32;
  switch (call.d_out.dtype) {
    case DType::bf16:
      return wide ? cuda::run_backward<float, cuda::bf16>(a, stream)
                  : cuda::run_backward<cuda::bf16, cuda::bf16>(a, stream);
    case DType::f16:
      return wide ? cuda::run_backward<float, cuda::f16>(a, stream)
                  : cuda::run_backward<cuda::f16, cuda::f16>(a, stream);
    default: return cuda::run_backward<float, float>(a, stream);
  }
}

}  // namespace mhla
