// Row factors of the shared_position normaliser; see shared_rows.h.
#include "mhla/cuda/sm90/shared_rows.h"

#include <algorithm>

#include "mhla/cuda/arguments.h"
#include "mhla/cuda/sm90/feature_pair.cuh"
#include "mhla/mhla.h"

namespace mhla::cuda::sm90 {
namespace {

constexpr int kThreads = 512, kPerProcessor = 2;
constexpr int kLoads = 4;  // rows that a lane has in flight

// Where the tables of a thread block lie, in 4-byte words.
struct Tables {
  int blocks, positions;
  // Weights are read four at a time, positions by neighbouring lanes and blocks by others.
  __host__ __device__ int width() const { return (blocks + 3) / 4 * 4; }
  __host__ __device__ int stride() const { return positions | 1; }
  __host__ __device__ int by_query() const { return blocks * width(); }  // backward
  __host__ __device__ int base(bool backward) const {
    return (backward ? 2 : 1) * blocks * width();
  }
  __host__ __device__ int gradient() const { return base(true) + blocks * stride(); }  // backward
  __host__ __device__ int tokens(bool backward) const {
    return base(backward) + (backward ? 2 : 1) * blocks * stride();
  }
  __host__ __device__ int bytes(bool backward) const {
    return 4 * (tokens(backward) + blocks * positions);
  }
};
constexpr int kMostBytes = 100 * 1024;

template <typename T>
__device__ __forceinline__ void map_elements(Chunk& chunk, Feature feature) {
  if (feature == Feature::elu1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) chunk.word[i] = feature_pair<T, Feature::elu1>(chunk.word[i]);
    return;
  }
  const PairMap<T> phi(feature);
#pragma unroll
  for (int i = 0; i < 4; ++i) chunk.word[i] = phi(chunk.word[i]);
}

// L lanes share a row, a chunk each.
template <typename T, int L>
struct Rows {
  static constexpr int kRows = 32 / L;          // that a warp loads at once
  static constexpr int kStep = kRows * kLoads;  // positions
  const int* tokens;                            // of the block's positions
  int positions, row, column;

  __device__ __forceinline__ Rows(const int* tokens, int positions)
      : tokens(tokens),
        positions(positions),
        row(static_cast<int>(threadIdx.x) % 32 / L),
        column(static_cast<int>(threadIdx.x) % L * 8) {}
  __device__ __forceinline__ int position(int first, int i) const {
    return first + i * kRows + row;
  }
  __device__ __forceinline__ int token(int first, int i) const {
    const int p = position(first, i);
    return p < positions ? tokens[p] : -1;
  }
  __device__ __forceinline__ void load(Chunk (&x)[kLoads], const RowTensor& tensor, const T* head,
                                       int width, int first) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int t = token(first, i);
      const bool exists = t >= 0 && column < width;  // the width is a multiple of 8
      x[i] = exists ? *reinterpret_cast<const Chunk*>(head + t * tensor.token_stride + column)
                    : Chunk{};
    }
  }
  // Sum over the lanes of a row, for lane 0 of them.
  static __device__ __forceinline__ float over_row(float x) {
#pragma unroll
    for (int offset = 1; offset < L; offset *= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
  }
  __device__ __forceinline__ void store(float* to, int first, int i, float x) const {
    const int p = position(first, i);
    if (column == 0 && p < positions) to[p] = tokens[p] < 0 ? 0.f : x;
  }
};

// base of one block, by one warp.
template <typename T, int L>
__device__ __forceinline__ void block_products(const SharedRowsArgs& args, const Rows<T, L>& rows,
                                               const T* q, const T* k, float* base) {
  Chunk x[kLoads], ahead[kLoads];
  float z[8] = {};
  for (int first = 0; first < args.positions; first += Rows<T, L>::kStep) {
    rows.load(x, args.k, k, args.dk, first);
    if (first == 0) rows.load(ahead, args.q, q, args.dk, 0);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const float keep = rows.token(first, i) < 0 ? 0.f : 1.f;  // phi(0) need not be zero
      map_elements<T>(x[i], args.feature);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 pair = unpack_pair<T>(x[i].word[w]);
        z[2 * w] = fmaf(keep, pair.x, z[2 * w]);
        z[2 * w + 1] = fmaf(keep, pair.y, z[2 * w + 1]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < 8; ++c) {
#pragma unroll
    for (int offset = L; offset < 32; offset *= 2) {
      z[c] += __shfl_xor_sync(0xffffffffu, z[c], offset);
    }
    if (rows.column >= args.dk) z[c] = 0.f;
  }
  for (int first = 0; first < args.positions; first += Rows<T, L>::kStep) {
    if (first > 0) rows.load(ahead, args.q, q, args.dk, first);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      map_elements<T>(ahead[i], args.feature);
      float sum = 0.f;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 pair = unpack_pair<T>(ahead[i].word[w]);
        sum = fmaf(pair.x, z[2 * w], fmaf(pair.y, z[2 * w + 1], sum));
      }
      rows.store(base, first, i, Rows<T, L>::over_row(sum));
    }
  }
}

// <d_o, o> of the rows of one block, by one warp.
template <typename T, int L>
__device__ __forceinline__ void output_products(const SharedRowsArgs& args, const Rows<T, L>& rows,
                                                const T* o, const T* d_o, float* to) {
  for (int first = 0; first < args.positions; first += Rows<T, L>::kStep) {
    Chunk x[kLoads], y[kLoads];
    rows.load(x, args.o, o, args.dv, first);
    rows.load(y, args.d_o, d_o, args.dv, first);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      float sum = 0.f;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 a = unpack_pair<T>(x[i].word[w]), b = unpack_pair<T>(y[i].word[w]);
        sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
      }
      rows.store(to, first, i, Rows<T, L>::over_row(sum));
    }
  }
}

// Four neighbouring rows of weights times a column of a table: sum over n of w[n][0..3] x[n].
__device__ __forceinline__ float4 mix_four(const float* weights, int width, const float* x,
                                           int stride, int count) {
  float4 sum = {};
#pragma unroll 8
  for (int n = 0; n < count; ++n) {
    const float4 w = *reinterpret_cast<const float4*>(weights + n * width);
    const float value = x[n * stride];
    sum.x = fmaf(w.x, value, sum.x);
    sum.y = fmaf(w.y, value, sum.y);
    sum.z = fmaf(w.z, value, sum.z);
    sum.w = fmaf(w.w, value, sum.w);
  }
  return sum;
}

// Gradients of base at four blocks a thread, and this normaliser's share of d_mixing.
__device__ __forceinline__ void mix_gradients(const SharedRowsArgs& args, const Tables& tables,
                                              const float* by_query, const float* base,
                                              const float* gradient, const int* tokens, float* to,
                                              float* sums) {
  const int thread = static_cast<int>(threadIdx.x), blocks = args.blocks;
  const int width = tables.width(), stride = tables.stride(), positions = args.positions;
  for (int n = thread; n < width / 4 * positions; n += kThreads) {
    const int four = n / positions, p = n - four * positions;
    const float4 sum = mix_four(by_query + 4 * four, width, gradient + p, stride, blocks);
    const float e[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = 4 * four + i, token = j < blocks ? tokens[j * positions + p] : -1;
      if (token >= 0) to[token] = args.scale * e[i];
    }
  }
  if (args.sums == nullptr) return;
  for (int n = thread; n < blocks * blocks; n += kThreads) {
    const int i = n / blocks, j = n - i * blocks;
    float sum = 0.f;
#pragma unroll 8
    for (int p = 0; p < positions; ++p) {
      sum = fmaf(gradient[i * stride + p], base[j * stride + p], sum);
    }
    const int column = args.sums_columns ? args.sums_columns[j] : j;
    sums[i * args.sums_row_stride + column * args.sums_column_stride] += args.scale * sum;
  }
}

template <typename T, int L, bool kBackward>
__global__ void __launch_bounds__(kThreads, kPerProcessor)
    shared_rows_kernel(const __grid_constant__ SharedRowsArgs args) {
  extern __shared__ __align__(16) float memory[];
  const int thread = static_cast<int>(threadIdx.x), blocks = args.blocks;
  const Tables tables{blocks, args.positions};
  const int width = tables.width(), stride = tables.stride(), positions = args.positions;
  float* by_key = memory;  // [j][i]
  float* by_query = memory + tables.by_query();
  float* base = memory + tables.base(kBackward);
  float* gradient = memory + tables.gradient();
  int* tokens = reinterpret_cast<int*>(memory + tables.tokens(kBackward));

  // What never changes
  for (int n = thread; n < blocks * positions; n += kThreads) tokens[n] = args.tokens[n];
  for (int n = thread; n < blocks * width; n += kThreads) {
    const int a = n / width, b = n - a * width;
    const auto weight = [&](int i, int j) {
      const bool seen = b < blocks && (!args.blocks_before || j <= i);
      return seen ? args.mixing[static_cast<std::int64_t>(i) * args.mixing_row_stride +
                                j * args.mixing_column_stride]
                  : 0.f;
    };
    by_key[n] = weight(b, a);
    if (kBackward) by_query[n] = weight(a, b);
  }
  float* sums = args.sums + static_cast<std::int64_t>(blockIdx.x) * args.sums_size;
  if (kBackward && args.sums != nullptr) {
    for (int n = thread; n < args.sums_size; n += kThreads) sums[n] = 0.f;
  }
  __syncthreads();

  for (int item = static_cast<int>(blockIdx.x); item < args.items; item += gridDim.x) {
    const int batch = item / args.heads, head = item - batch * args.heads;
    const T* q = args.q.head<const T>(batch, head);
    const T* k = args.k.head<const T>(batch, head);
    for (int block = thread / 32; block < blocks; block += kThreads / 32) {
      const Rows<T, L> rows(tokens + block * positions, positions);
      block_products<T, L>(args, rows, q, k, base + block * stride);
      if constexpr (kBackward) {
        output_products<T, L>(args, rows, args.o.head<const T>(batch, head),
                              args.d_o.head<const T>(batch, head), gradient + block * stride);
      }
    }
    __syncthreads();

    // Denominators of four blocks at one position, and their gradients
    const std::int64_t row = static_cast<std::int64_t>(item) * args.row_stride;
    for (int n = thread; n < width / 4 * positions; n += kThreads) {
      const int four = n / positions, p = n - four * positions;
      const float4 sum = mix_four(by_key + 4 * four, width, base + p, stride, blocks);
      const float den[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = 4 * four + e, token = i < blocks ? tokens[i * positions + p] : -1;
        if (token < 0) continue;
        const float total = args.scale * den[e] + args.eps;
        const float inverse = total == 0.f ? 0.f : 1.f / total;
        args.factor[row + token] = args.scale * inverse;
        if (kBackward) gradient[i * stride + p] *= -inverse;
      }
    }
    __syncthreads();
    if constexpr (kBackward) {
      mix_gradients(args, tables, by_query, base, gradient, tokens, args.gradient + row, sums);
      __syncthreads();
    }
  }
}

template <typename T, int L>
void launch_lanes(bool backward, int grid, const SharedRowsArgs& args, void* stream) {
  const int bytes = Tables{args.blocks, args.positions}.bytes(backward);
  auto* kernel = backward ? shared_rows_kernel<T, L, true> : shared_rows_kernel<T, L, false>;
  allow_shared(reinterpret_cast<const void*>(kernel), bytes);
  launch(kernel, {.x = grid}, kThreads, bytes, stream, args);
}

template <typename T>
void launch_type(bool backward, int grid, const SharedRowsArgs& args, void* stream) {
  const int width = backward ? std::max(args.dk, args.dv) : args.dk;
  if (width <= 32) return launch_lanes<T, 4>(backward, grid, args, stream);
  if (width <= 64) return launch_lanes<T, 8>(backward, grid, args, stream);
  if (width <= 128) return launch_lanes<T, 16>(backward, grid, args, stream);
  fail(ErrorCode::internal, "cuda", "no shared rows of width ", width);
}

}  // namespace

std::int64_t shared_rows_positions(const Problem& problem) {
  const auto box = largest_box(problem.layout);
  return box[0] * box[1] * box[2];
}

bool shared_rows_fit(const Problem& problem) {
  constexpr std::int64_t kMostPositions = 4096;
  const std::int64_t blocks = problem.layout.mixing_size();
  const std::int64_t positions = shared_rows_positions(problem);
  if (blocks > kMaxBlocks || positions > kMostPositions) return false;
  return Tables{static_cast<int>(blocks), static_cast<int>(positions)}.bytes(true) <= kMostBytes;
}

int shared_rows_grid(const Problem& problem, int processors) {
  return static_cast<int>(
      std::min<std::int64_t>(kPerProcessor * processors, problem.batch * problem.heads));
}

SharedRowsPlan shared_rows_plan(const Problem& problem, int processors) {
  SharedRowsPlan plan;
  const auto box = largest_box(problem.layout);
  plan.blocks = static_cast<int>(problem.layout.mixing_size());
  plan.positions = static_cast<int>(shared_rows_positions(problem));
  plan.grid = shared_rows_grid(problem, processors);
  plan.tokens.assign(static_cast<std::size_t>(plan.blocks * plan.positions), -1);
  for (const Block& block : problem.layout.blocks()) {
    const std::int64_t line = block.extent[2], plane = block.extent[1] * line;
    for (std::int64_t p = 0; p < block.tokens(); ++p) {
      const std::int64_t rest = p % plane;
      const std::int64_t place = (p / plane * box[1] + rest / line) * box[2] + rest % line;
      plan.tokens[static_cast<std::size_t>(block.index * plan.positions + place)] =
          static_cast<int>(block.token(p));
    }
  }
  return plan;
}

std::size_t shared_rows_bytes(const Problem& problem) {
  const auto bytes = static_cast<std::size_t>(problem.batch * problem.heads *
                                              problem.layout.tokens()) *
                     sizeof(float);
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

double shared_rows_seconds(const Problem& problem) {
  constexpr double kBandwidth = 3.4e12, kLaunch = 2e-6;
  return kLaunch + 2.0 *
                       static_cast<double>(problem.batch * problem.heads * problem.layout.tokens() *
                                           problem.dk) *
                       static_cast<double>(size_of(problem.dtype)) / kBandwidth;
}

SharedRowsArgs shared_rows_args(const Problem& problem, const SharedRowsPlan& plan,
                                const int* tokens, const TensorView& mixing) {
  SharedRowsArgs args{};
  args.tokens = tokens;
  args.blocks = plan.blocks;
  args.positions = plan.positions;
  args.items = static_cast<int>(problem.batch * problem.heads);
  args.heads = static_cast<int>(problem.heads);
  args.row_stride = static_cast<int>(problem.layout.tokens());
  args.dk = static_cast<int>(problem.dk);
  args.dv = static_cast<int>(problem.dv);
  args.feature = static_cast<Feature>(problem.feature_map);
  args.blocks_before = problem.mask != Mask::none;
  args.scale = static_cast<float>(problem.scale);
  args.eps = static_cast<float>(problem.denominator_eps());
  args.mixing = static_cast<const float*>(mixing.data);
  args.mixing_row_stride = static_cast<int>(mixing.strides[mixing.rank - 2]);
  args.mixing_column_stride = static_cast<int>(mixing.strides[mixing.rank - 1]);
  return args;
}

void launch_shared_rows(DType dtype, bool backward, int grid, const SharedRowsArgs& args,
                        void* stream) {
  if (dtype == DType::bf16) return launch_type<bf16>(backward, grid, args, stream);
  if (dtype == DType::f16) return launch_type<f16>(backward, grid, args, stream);
  fail(ErrorCode::internal, "cuda", "no shared rows of ", name(dtype));
}

}  // namespace mhla::cuda::sm90
