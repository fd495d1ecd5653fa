// Residual sum, norm, modulation, feature map and rotary turn of a row of tokens: memory-bound, one
// pass. A row lies in the registers of up to a warp.
#include "mhla/cuda/device/feature_map.cuh"
#include "mhla/cuda/norm_rows.cuh"
#include "mhla/norms.h"

namespace mhla::cuda {
namespace {

constexpr int kThreads = 128;

struct NormArgs {
  NormRows x, branch, sum, out, plain;
  NormVector gate, weight, bias, scale, shift, then_weight, then_bias;
  float2* statistics;
  const float *cos, *sin;
  int rows, tokens, pieces, lanes, lane_bits, head_pieces;  // lanes = 1 << lane_bits
  float over_width, eps, then_eps;
  Map map;
  bool rms, has_branch, has_plain;
};

// kEach pieces of a row in each of its lanes. kModulated: see modulates().
template <typename TX, typename TY, int kEach, bool kModulated>
__global__ void __launch_bounds__(kThreads, kEach <= 3 && !kModulated ? 7 : 0)
    norm_kernel(const NormArgs a) {
  constexpr int kC = kChunk<TY>;
  const int lane = static_cast<int>(threadIdx.x) & (a.lanes - 1);
  const int at = static_cast<int>(blockIdx.x) * (kThreads >> a.lane_bits) +
                 (static_cast<int>(threadIdx.x) >> a.lane_bits);
  const bool live = at < a.rows;  // the others take part in the shuffles of their warp
  const int row = live ? at : a.rows - 1;
  const int b = row / a.tokens, n = row - b * a.tokens;
  const auto inside = [&](int i) { return kModulated || lane + i * a.lanes < a.pieces; };
  const auto piece_of = [&](int i) {  // past the end of the row its last one again
    return kModulated ? lane + i * a.lanes : min(lane + i * a.lanes, a.pieces - 1);
  };

  // Loads, all before the first use
  float v[kEach][kC];
  Piece<TX, kC> x[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i].load(a.x.at(b, n), piece_of(i));
  if (a.has_branch) {
    Piece<TY, kC> branch[kEach], gate[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) branch[i].load(a.branch.at(b, n), piece_of(i));
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (a.gate.data) {
        gate[i].load(a.gate.data + b * a.gate.batch, piece_of(i));
      } else {
        gate[i].fill(1.f);
      }
    }
    // Residual sum; the norm sees it as it is stored
    char* to = a.sum.at(b, n);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      float y[kC], g[kC];
      x[i].get(v[i]);
      branch[i].get(y);
      gate[i].get(g);
#pragma unroll
      for (int c = 0; c < kC; ++c) v[i][c] = fmaf(g[c], y[c], v[i][c]);
      x[i].set(v[i]);
      if (live && inside(i)) x[i].store(to, piece_of(i));
    }
  }

  // The modulation, asked for while the statistics are made
  Piece<TY, kC> scale[kEach], shift[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (kModulated || a.scale.data) {
      scale[i].load(a.scale.data + b * a.scale.batch, piece_of(i));
      shift[i].load(a.shift.data + b * a.shift.batch, piece_of(i));
    }
  }

  // Statistics
  float mean = 0.f, squares = 0.f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    x[i].get(v[i]);
#pragma unroll
    for (int c = 0; c < kC; ++c) {
      if (!inside(i)) v[i][c] = 0.f;
      mean += v[i][c];
    }
  }
  const auto normalise = [&](float sum, bool rms, float eps) {
    mean = rms ? 0.f : row_sum(sum, a.lanes) * a.over_width;
    squares = 0.f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!inside(i)) continue;
#pragma unroll
      for (int c = 0; c < kC; ++c) {
        v[i][c] -= mean;
        squares = fmaf(v[i][c], v[i][c], squares);
      }
    }
    return rsqrtf(fmaf(row_sum(squares, a.lanes), a.over_width, eps));
  };
  float factor = normalise(mean, a.rms, a.eps);
  if (!kModulated && a.statistics && live && lane == 0) {
    a.statistics[row] = make_float2(mean, factor);
  }

  // Affine, modulation
  float next = 0.f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!inside(i)) continue;
    float p[kC];
#pragma unroll
    for (int c = 0; c < kC; ++c) v[i][c] *= factor;
    if (!kModulated && a.weight.data) {
      load_vector(a.weight, 0, piece_of(i), p);
#pragma unroll
      for (int c = 0; c < kC; ++c) v[i][c] *= p[c];
    }
    if (!kModulated && a.bias.data) {
      load_vector(a.bias, 0, piece_of(i), p);
#pragma unroll
      for (int c = 0; c < kC; ++c) v[i][c] += p[c];
    }
    if (kModulated || a.scale.data) {
      float q[kC];
      scale[i].get(p);
      shift[i].get(q);
#pragma unroll
      for (int c = 0; c < kC; ++c) v[i][c] = fmaf(v[i][c], p[c], v[i][c]) + q[c];
    }
#pragma unroll
    for (int c = 0; c < kC; ++c) next += v[i][c];
  }

  // The second norm
  if (a.then_weight.data) {
    factor = normalise(next, /*rms=*/false, a.then_eps);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!inside(i)) continue;
      float w[kC], p[kC];
      if constexpr (kModulated) {
        Piece<TY, kC> weight, bias;
        weight.load(a.then_weight.data, piece_of(i)), bias.load(a.then_bias.data, piece_of(i));
        weight.get(w), bias.get(p);
      } else {
        load_vector(a.then_weight, 0, piece_of(i), w);
        load_vector(a.then_bias, 0, piece_of(i), p);
      }
#pragma unroll
      for (int c = 0; c < kC; ++c) v[i][c] = fmaf(v[i][c] * factor, w[c], p[c]);
    }
  }
  if (!live) return;

  // Feature map, rotary turn
  char* to = a.out.at(b, n);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!inside(i)) continue;
    Piece<TY, kC> y;
    if (!kModulated && !a.map.identity) {
#pragma unroll
      for (int c = 0; c < kC; ++c) v[i][c] = feature(a.map, v[i][c]);
    }
    if (!kModulated && a.has_plain) {
      y.set(v[i]);
      y.store(a.plain.at(b, n), piece_of(i));
    }
    if (!kModulated && a.cos) {
      constexpr int kPairs = kC / 2;
      const std::int64_t angle = static_cast<std::int64_t>(n) * a.head_pieces * kPairs +
                                 piece_of(i) % a.head_pieces * kPairs;
#pragma unroll
      for (int j = 0; j < kPairs; j += 2) {
        const float2 cos = *reinterpret_cast<const float2*>(a.cos + angle + j);
        const float2 sin = *reinterpret_cast<const float2*>(a.sin + angle + j);
        const float p = v[i][2 * j], q = v[i][2 * j + 1];
        const float r = v[i][2 * j + 2], s = v[i][2 * j + 3];
        v[i][2 * j] = p * cos.x - q * sin.x, v[i][2 * j + 1] = q * cos.x + p * sin.x;
        v[i][2 * j + 2] = r * cos.y - s * sin.y, v[i][2 * j + 3] = s * cos.y + r * sin.y;
      }
    }
    y.set(v[i]);
    y.store(to, piece_of(i));
  }
}

// The norms inside a block of DiT: modulated, perhaps normed again, nothing else, and no lane is
// without a piece. Half of the instructions, which are what a second norm waits for.
template <typename TY>
bool modulates(const NormArgs& a, int each) {
  constexpr DType kType = std::is_same_v<TY, float>  ? DType::f32
                          : std::is_same_v<TY, bf16> ? DType::bf16
                                                     : DType::f16;
  const auto fits = [&](const NormVector& v) { return !v.data || v.type == kType; };
  return a.scale.data && !a.weight.data && !a.bias.data && !a.statistics && !a.has_plain &&
         !a.cos && a.map.identity && a.pieces == a.lanes * each && fits(a.then_weight) &&
         fits(a.then_bias);
}

template <typename TX, typename TY, int kEach>
void launch_norm(const NormArgs& a, Stream stream) {
  const int each_block = kThreads / a.lanes;
  launch(modulates<TY>(a, kEach) ? norm_kernel<TX, TY, kEach, true>
                                 : norm_kernel<TX, TY, kEach, false>,
         {(a.rows + each_block - 1) / each_block}, kThreads, 0, stream, a);
}

template <typename TX, typename TY>
void run_norm(NormArgs& a, int channels, Stream stream) {
  constexpr int kMost = sizeof(TY) == 4 ? 16 : 8;
  a.pieces = channels / kChunk<TY>;
  const RowSplit split = split_row<kMost>(a.pieces);
  a.lanes = split.lanes;
  for (a.lane_bits = 0; 1 << a.lane_bits < a.lanes;) ++a.lane_bits;
  if (a.cos) a.head_pieces /= kChunk<TY>;
  if constexpr (kMost == 16) {
    if (split.each > 12) return launch_norm<TX, TY, 16>(a, stream);
    if (split.each > 8) return launch_norm<TX, TY, 12>(a, stream);
  }
  switch (split.each) {
    case 1: return launch_norm<TX, TY, 1>(a, stream);
    case 2: return launch_norm<TX, TY, 2>(a, stream);
    case 3: return launch_norm<TX, TY, 3>(a, stream);
    case 4: return launch_norm<TX, TY, 4>(a, stream);
    case 5: return launch_norm<TX, TY, 5>(a, stream);
    case 6: return launch_norm<TX, TY, 6>(a, stream);
    default: return launch_norm<TX, TY, 8>(a, stream);
  }
}

Map map_of(FeatureMap map) {
  switch (map) {
    case FeatureMap::relu_eps: return kReluEps;
    case FeatureMap::relu: return kRelu;
    case FeatureMap::elu1: return kElu1;
    case FeatureMap::identity: return kIdentity;
  }
  fail("row_norm", "feature_map: unknown value ", static_cast<int>(map));
}

NormArgs arguments_of(const RowNorm& call) {
  NormArgs a{};
  a.x = norm_rows(call.x), a.out = norm_rows(call.out);
  a.has_branch = call.branch.defined(), a.has_plain = call.plain.defined();
  if (a.has_branch) a.branch = norm_rows(call.branch), a.sum = norm_rows(call.sum);
  if (a.has_plain) a.plain = norm_rows(call.plain);
  a.gate = norm_vector(call.gate);
  a.weight = norm_vector(call.weight), a.bias = norm_vector(call.bias);
  a.scale = norm_vector(call.scale), a.shift = norm_vector(call.shift);
  a.then_weight = norm_vector(call.then_weight), a.then_bias = norm_vector(call.then_bias);
  a.statistics = static_cast<float2*>(call.statistics.data);
  if (call.cos.defined()) {
    a.cos = static_cast<const float*>(call.cos.data);
    a.sin = static_cast<const float*>(call.sin.data);
    a.head_pieces = static_cast<int>(2 * call.cos.shape[1]);  // channels; see run_norm
  }
  a.tokens = static_cast<int>(call.x.shape[1]);
  a.rows = static_cast<int>(call.x.shape[0]) * a.tokens;
  a.over_width = 1.f / static_cast<float>(call.x.shape[2]);
  a.eps = static_cast<float>(call.eps), a.then_eps = static_cast<float>(call.then_eps);
  a.map = map_of(call.map);
  a.rms = call.rms;
  return a;
}

}  // namespace
}  // namespace mhla::cuda

namespace mhla {

void row_norm(const RowNorm& call, Stream stream) {
  if (const std::string why = refusal(call); !why.empty()) fail("row_norm", why);
  const cuda::DeviceGuard guard(call.x.device.index);
  cuda::NormArgs a = cuda::arguments_of(call);
  const int channels = static_cast<int>(call.x.shape[2]);
  const bool wide = call.x.dtype == DType::f32;
  switch (call.out.dtype) {
    case DType::bf16:
      return wide ? cuda::run_norm<float, cuda::bf16>(a, channels, stream)
                  : cuda::run_norm<cuda::bf16, cuda::bf16>(a, channels, stream);
    case DType::f16:
      return wide ? cuda::run_norm<float, cuda::f16>(a, channels, stream)
                  : cuda::run_norm<cuda::f16, cuda::f16>(a, channels, stream);
    default: return cuda::run_norm<float, float>(a, channels, stream);
  }
}

}  // namespace mhla
