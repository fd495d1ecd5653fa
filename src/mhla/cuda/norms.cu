// Residual sum, norm, modulation, feature map and rotary turn of a row of tokens: memory-bound, one
// pass. A row lies in the registers of up to a warp.
#include <algorithm>
#include <cstdlib>

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

  // The i-th piece of a lane; past the end of the row its last one. full: rows end with a lane.
  template <bool kFull>
  __device__ int piece(int lane, int i) const {
    return kFull ? lane + i * lanes : min(lane + i * lanes, pieces - 1);
  }
};

// The pieces of a row that one of its lanes has; past the end of the row its last one again.
template <typename TX, typename TY, int kEach>
struct Loaded {
  Piece<TX, kChunk<TY>> x[kEach];
  Piece<TY, kChunk<TY>> branch[kEach];
};

// Rows on their way from memory while another is worked on: bytes in flight that need no registers
// and no thread that waits. Every thread fetches what it will use itself, so there are no barriers.
template <typename TX, typename TY, int kEach>
struct Ring {
  static constexpr int kX = Piece<TX, kChunk<TY>>::kBytes / 16;
  static constexpr int kRoom = 48 * 1024 / (kEach * (kX + 1) * kThreads * 16);
  // 0: too wide for a second row in the memory that kernels have without asking.
  static constexpr int kStages = kRoom >= 3 ? 3 : kRoom == 2 ? 2 : 0;

  uint4 x[kStages > 0 ? kStages : 1][kEach][kX][kThreads];
  uint4 branch[kStages > 0 ? kStages : 1][kEach][kThreads];

  __device__ void fetch_x(int stage, int i, const char* row, int piece) {
#pragma unroll
    for (int j = 0; j < kX; ++j) {
      ptx::copy_async(&x[stage][i][j][threadIdx.x], row + (piece * kX + j) * 16, true);
    }
  }
  __device__ void fetch_branch(int stage, int i, const char* row, int piece) {
    ptx::copy_async(&branch[stage][i][threadIdx.x], row + piece * 16, true);
  }
  __device__ void take(int stage, bool has_branch, Loaded<TX, TY, kEach>& to) const {
    const auto move = [](std::uint32_t* word, const uint4& from) {
      word[0] = from.x, word[1] = from.y, word[2] = from.z, word[3] = from.w;
    };
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int j = 0; j < kX; ++j) move(to.x[i].word + 4 * j, x[stage][i][j][threadIdx.x]);
      move(to.branch[i].word, has_branch ? branch[stage][i][threadIdx.x] : uint4{});
    }
  }
};

// What a thread has to know of a row.
struct RowPlace {
  int row, b, n;
  bool live;  // the others take part in the shuffles of their warp

  __device__ RowPlace(const NormArgs& a, int at)
      : row(at < a.rows ? at : a.rows - 1),
        b(row / a.tokens),
        n(row - b * a.tokens),
        live(at < a.rows) {}
};

// kModulated: see modulates().
template <typename TX, typename TY, int kEach, bool kModulated>
__device__ __forceinline__ void norm_row(const NormArgs& a, const RowPlace& place, int lane,
                                         Loaded<TX, TY, kEach>& loaded) {
  constexpr int kC = kChunk<TY>;
  const auto [row, b, n, live] = place;
  const auto inside = [&](int i) { return kModulated || lane + i * a.lanes < a.pieces; };
  const auto piece_of = [&](int i) { return a.template piece<kModulated>(lane, i); };
  auto& x = loaded.x;
  float v[kEach][kC];

  // NOTE: every piece gets a value on every way: what one row may leave to the next keeps
  // registers.
  if (a.has_branch) {
    Piece<TY, kC> gate[kEach];
    const char* gate_row = a.gate.data + b * a.gate.batch;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (a.gate.data) {
        gate[i].load(gate_row, piece_of(i));
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
      loaded.branch[i].get(y);
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
    } else {
      scale[i].fill(0.f), shift[i].fill(0.f);
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
  if (!kModulated && a.statistics && live && lane == 0)
    a.statistics[row] = make_float2(mean, factor);

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

// A thread block takes row after row; kEach pieces of a row in each of its lanes.
template <typename TX, typename TY, int kEach, bool kModulated, bool kRing = true>
__global__ void __launch_bounds__(kThreads) norm_kernel(const NormArgs a) {
  using Fetched = Ring<TX, TY, kEach>;
  constexpr int kStages = kRing ? Fetched::kStages : 0;
  const int lane = static_cast<int>(threadIdx.x) & (a.lanes - 1);
  const int mine = static_cast<int>(threadIdx.x) >> a.lane_bits;
  const int each_block = kThreads >> a.lane_bits;
  const int first = static_cast<int>(blockIdx.x) * each_block;
  const int step = static_cast<int>(gridDim.x) * each_block;
  const auto piece_of = [&](int i) { return a.template piece<kModulated>(lane, i); };

  if constexpr (kStages == 0) {
    const RowPlace place(a, first + mine);
    Loaded<TX, TY, kEach> loaded;
#pragma unroll
    for (int i = 0; i < kEach; ++i) loaded.x[i].load(a.x.at(place.b, place.n), piece_of(i));
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (a.has_branch) loaded.branch[i].load(a.branch.at(place.b, place.n), piece_of(i));
    }
    norm_row<TX, TY, kEach, kModulated>(a, place, lane, loaded);
  } else {
    __shared__ Fetched ring;
    const auto fetch = [&](int stage, int base) {
      if (base < a.rows) {
        const RowPlace place(a, base + mine);
#pragma unroll
        for (int i = 0; i < kEach; ++i)
          ring.fetch_x(stage, i, a.x.at(place.b, place.n), piece_of(i));
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          if (a.has_branch) ring.fetch_branch(stage, i, a.branch.at(place.b, place.n), piece_of(i));
        }
      }
      ptx::copy_commit();  // also where nothing was asked for: groups are counted
    };
    int stage = 0;
    for (; stage < kStages - 1; ++stage) fetch(stage, first + stage * step);
#pragma unroll 1
    for (int base = first; base < a.rows; base += step) {
      fetch(stage, base + (kStages - 1) * step);
      stage = stage + 1 == kStages ? 0 : stage + 1;  // the oldest: the row of now
      ptx::copy_wait<kStages - 1>();
      Loaded<TX, TY, kEach> loaded;
      ring.take(stage, a.has_branch, loaded);
      norm_row<TX, TY, kEach, kModulated>(a, RowPlace(a, base + mine), lane, loaded);
    }
  }
}

// Thread blocks of a kernel that the device holds at a time.
std::int64_t resident_blocks(const void* kernel) {
  int device = 0, processors = 0, blocks = 0;
  check_call(cudaGetDevice(&device), "cudaGetDevice");
  check_call(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
             "cudaDeviceGetAttribute");
  check_call(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kThreads, 0),
             "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  return std::int64_t{processors} * std::max(blocks, 1);
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

template <typename TX, typename TY, int kEach, bool kModulated, bool kRing>
void launch_kernel(const NormArgs& a, Stream stream) {
  void (*kernel)(NormArgs) = norm_kernel<TX, TY, kEach, kModulated, kRing>;
  const int each_block = kThreads / a.lanes;
  std::int64_t blocks = (a.rows + each_block - 1) / each_block;
  if constexpr (kRing && Ring<TX, TY, kEach>::kStages > 0) {
    static const std::int64_t most = resident_blocks(reinterpret_cast<const void*>(kernel));
    blocks = std::min(blocks, most);
  }
  launch(kernel, {blocks}, kThreads, 0, stream, a);
}

template <typename TX, typename TY, int kEach>
void launch_norm(const NormArgs& a, Stream stream) {
  static const bool ring = std::getenv("MHLA_NORM_RING") != nullptr;
  if (modulates<TY>(a, kEach)) {
    return ring ? launch_kernel<TX, TY, kEach, true, true>(a, stream)
                : launch_kernel<TX, TY, kEach, true, false>(a, stream);
  }
  return ring ? launch_kernel<TX, TY, kEach, false, true>(a, stream)
              : launch_kernel<TX, TY, kEach, false, false>(a, stream);
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
