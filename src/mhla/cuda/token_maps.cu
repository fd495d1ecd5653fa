// Depthwise convolution on the token grid, and the rotary turn: memory-bound, one pass each.
#include "mhla/cuda/token_rows.cuh"

namespace mhla::cuda {
namespace {

constexpr int kThreads = 256;

// A thread computes a chunk of channels of kStrip tokens in a row of the grid: a row of the kernel
// reads kStrip + KW - 1 chunks for them. Eight threads side by side take 128 bytes of a token.
// NOTE: strips of 8 read less, but leave registers for a quarter of the threads only.
constexpr int kStrip = 4, kLanes = 8, kStrips = kThreads / kLanes;
constexpr int kRounds = 4;  // strips of a thread, one after the other: fewer copies of the weights

struct ConvolutionArgs {
  Rows in, out, addend;
  const void *weight, *bias;
  DType weight_type;
  int strips;  // of all rows of all pictures
  int strips_a_row, grid[3], kernel[3], taps, head_chunks, chunks, channels;
  bool has_bias, has_addend, transposed;
};

__device__ float load(const void* p, DType type, std::int64_t i) {
  switch (type) {
    case DType::bf16: return to_float(static_cast<const bf16*>(p)[i]);
    case DType::f16: return to_float(static_cast<const f16*>(p)[i]);
    default: return static_cast<const float*>(p)[i];
  }
}

template <int kC>
__device__ void load_floats(const float* from, float (&to)[kC]) {
#pragma unroll
  for (int c = 0; c < kC; c += 4) {
    const float4 x = *reinterpret_cast<const float4*>(from + c);
    to[c] = x.x, to[c + 1] = x.y, to[c + 2] = x.z, to[c + 3] = x.w;
  }
}

// One row of the kernel: kStrip + KW - 1 chunks of a row of the grid, and their products.
template <typename T, int KW>
struct ConvolutionRow {
  static constexpr int kC = kChunk<T>, kWidth = kLanes * kC;
  Chunk chunks[kStrip + KW - 1];

  // from: the first token of the row. What lies outside of the grid is zero.
  __device__ __forceinline__ void load(const char* from, std::int64_t token, int x0, int width) {
#pragma unroll
    for (int j = 0; j < kStrip + KW - 1; ++j) {
      const int x = x0 + j - KW / 2;
      chunks[j] = Chunk{};
      if (x >= 0 && x < width) chunks[j] = *reinterpret_cast<const Chunk*>(from + x * token);
    }
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < kStrip + KW - 1; ++j) chunks[j] = Chunk{};
  }
  __device__ __forceinline__ void add(const float* weights, float (&sum)[kStrip][kC]) const {
    float w[KW][kC];
#pragma unroll
    for (int dx = 0; dx < KW; ++dx) load_floats(weights + dx * kWidth, w[dx]);
#pragma unroll
    for (int j = 0; j < kStrip + KW - 1; ++j) {
      float x[kC];
      unpack<T>(chunks[j], x);
#pragma unroll
      for (int dx = 0; dx < KW; ++dx) {
        const int s = j - dx;
        if (s < 0 || s >= kStrip) continue;
#pragma unroll
        for (int c = 0; c < kC; ++c) sum[s][c] = fmaf(w[dx][c], x[c], sum[s][c]);
      }
    }
  }
};

// KH: rows of the kernel of a picture, all of which are loaded before the first is used; 0: any
// number, in any number of planes, one after the other.
template <typename T, int KW, int KH>
__global__ void __launch_bounds__(kThreads, KH > 0 ? 2 : 1)
    convolution_kernel(const ConvolutionArgs a) {
  constexpr int kC = kChunk<T>, kWidth = kLanes * kC;
  extern __shared__ __align__(16) float weights[];  // [taps + 1][kWidth], the bias last
  // Neighbouring thread blocks take neighbouring channels of the same tokens: whole rows of memory.
  const int groups = (a.chunks + kLanes - 1) / kLanes;
  const int block = static_cast<int>(blockIdx.x) / groups;
  const int group = static_cast<int>(blockIdx.x) % groups, first = group * kWidth;
  for (int i = static_cast<int>(threadIdx.x); i < (a.taps + 1) * kWidth; i += kThreads) {
    const int tap = i / kWidth, channel = first + i % kWidth;
    float value = 0.f;
    if (channel < a.channels && tap < a.taps) {
      const int from = a.transposed ? a.taps - 1 - tap : tap;
      value = load(a.weight, a.weight_type, static_cast<std::int64_t>(channel) * a.taps + from);
    } else if (channel < a.channels && a.has_bias) {
      value = load(a.bias, a.weight_type, channel);
    }
    weights[i] = value;
  }
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int chunk = group * kLanes + lane;
  if (chunk >= a.chunks) return;
  const int head = chunk / a.head_chunks, place = chunk % a.head_chunks;
  const float* own = weights + lane * kC;
  for (int round = 0; round < kRounds; ++round) {
    const int strip = (block * kRounds + round) * kStrips + static_cast<int>(threadIdx.x) / kLanes;
    if (strip >= a.strips) return;
    const int line = strip / a.strips_a_row, x0 = (strip - line * a.strips_a_row) * kStrip;
    const int plane = line / a.grid[1], y = line - plane * a.grid[1];
    const int b = plane / a.grid[0], z = plane - b * a.grid[0];
    const auto row_of = [&](int from_z, int from_y) {
      const std::int64_t row = (static_cast<std::int64_t>(from_z) * a.grid[1] + from_y) * a.grid[2];
      return reinterpret_cast<const char*>(a.in.at(b, row, head, place));
    };

    float sum[kStrip][kC];
#pragma unroll
    for (int s = 0; s < kStrip; ++s) load_floats(own + a.taps * kWidth, sum[s]);
    if constexpr (KH > 0) {
      ConvolutionRow<T, KW> rows[KH];
#pragma unroll
      for (int dy = 0; dy < KH; ++dy) {
        const int from_y = y + dy - KH / 2;
        if (from_y >= 0 && from_y < a.grid[1]) {
          rows[dy].load(row_of(z, from_y), a.in.token, x0, a.grid[2]);
        } else {
          rows[dy].clear();
        }
      }
#pragma unroll
      for (int dy = 0; dy < KH; ++dy) rows[dy].add(own + dy * KW * kWidth, sum);
    } else {
      for (int dz = 0; dz < a.kernel[0]; ++dz) {
        const int from_z = z + dz - a.kernel[0] / 2;
        if (from_z < 0 || from_z >= a.grid[0]) continue;
        for (int dy = 0; dy < a.kernel[1]; ++dy) {
          const int from_y = y + dy - a.kernel[1] / 2;
          if (from_y < 0 || from_y >= a.grid[1]) continue;
          ConvolutionRow<T, KW> row;
          row.load(row_of(from_z, from_y), a.in.token, x0, a.grid[2]);
          row.add(own + (dz * a.kernel[1] + dy) * KW * kWidth, sum);
        }
      }
    }
    const std::int64_t token = (static_cast<std::int64_t>(z) * a.grid[1] + y) * a.grid[2] + x0;
#pragma unroll
    for (int s = 0; s < kStrip; ++s) {
      if (x0 + s >= a.grid[2]) break;
      if (a.has_addend) {
        float x[kC];
        unpack<T>(*a.addend.at(b, token + s, head, place), x);
#pragma unroll
        for (int c = 0; c < kC; ++c) sum[s][c] += x[c];
      }
      *a.out.at(b, token + s, head, place) = pack<T>(sum[s]);
    }
  }
}

template <typename T>
void convolve(const ConvolutionArgs& a, Stream stream) {
  constexpr int kEach = kStrips * kRounds;
  const Grid grid{(static_cast<std::int64_t>(a.strips) + kEach - 1) / kEach *
                  ((a.chunks + kLanes - 1) / kLanes)};
  const int shared = (a.taps + 1) * kLanes * kChunk<T> * static_cast<int>(sizeof(float));
  const auto run = [&](void (*kernel)(ConvolutionArgs)) {
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    launch(kernel, grid, kThreads, shared, stream, a);
  };
  if (a.kernel[0] == 1 && a.kernel[1] == 3 && a.kernel[2] == 3) {
    return run(convolution_kernel<T, 3, 3>);
  }
  switch (a.kernel[2]) {
    case 1: return run(convolution_kernel<T, 1, 0>);
    case 3: return run(convolution_kernel<T, 3, 0>);
    case 5: return run(convolution_kernel<T, 5, 0>);
    default: return run(convolution_kernel<T, 7, 0>);
  }
}

// A thread turns one chunk, or one chunk of each half of a head.
struct TurnArgs {
  Rows in, out;
  const float *cos, *sin;
  std::int64_t tasks, tokens;
  int heads, head_chunks;  // chunks of a head, or of half of it
  float sign;
};

template <typename T, bool neighbours>
__global__ void __launch_bounds__(kThreads) turn_kernel(const TurnArgs a) {
  constexpr int kC = kChunk<T>, kPairs = neighbours ? kC / 2 : kC;
  const std::int64_t task = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (task >= a.tasks) return;
  const int place = static_cast<int>(task % a.head_chunks);
  std::int64_t rest = task / a.head_chunks;
  const int head = static_cast<int>(rest % a.heads);
  rest /= a.heads;
  const std::int64_t token = rest % a.tokens, b = rest / a.tokens;
  const std::int64_t angle = (token * a.head_chunks + place) * kPairs;
  float cos[kPairs], sin[kPairs], x[kC], y[kC];
#pragma unroll
  for (int i = 0; i < kPairs; i += 2) {
    const float2 c = *reinterpret_cast<const float2*>(a.cos + angle + i);
    const float2 s = *reinterpret_cast<const float2*>(a.sin + angle + i);
    cos[i] = c.x, cos[i + 1] = c.y, sin[i] = a.sign * s.x, sin[i + 1] = a.sign * s.y;
  }
  unpack<T>(*a.in.at(b, token, head, place), x);
  if constexpr (neighbours) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      y[2 * i] = x[2 * i] * cos[i] - x[2 * i + 1] * sin[i];
      y[2 * i + 1] = x[2 * i + 1] * cos[i] + x[2 * i] * sin[i];
    }
    *a.out.at(b, token, head, place) = pack<T>(y);
  } else {
    float far[kC], far_y[kC];
    unpack<T>(*a.in.at(b, token, head, place + a.head_chunks), far);
#pragma unroll
    for (int i = 0; i < kC; ++i) {
      y[i] = x[i] * cos[i] - far[i] * sin[i];
      far_y[i] = far[i] * cos[i] + x[i] * sin[i];
    }
    *a.out.at(b, token, head, place) = pack<T>(y);
    *a.out.at(b, token, head, place + a.head_chunks) = pack<T>(far_y);
  }
}

template <typename T>
void turn(const TurnArgs& a, bool neighbours, Stream stream) {
  launch(neighbours ? turn_kernel<T, true> : turn_kernel<T, false>,
         {(a.tasks + kThreads - 1) / kThreads}, kThreads, 0, stream, a);
}

template <typename Call>
void require(const char* where, const Call& call) {
  if (const std::string why = refusal(call); !why.empty()) fail(where, why);
}

}  // namespace
}  // namespace mhla::cuda

namespace mhla {

void grid_convolution(const GridConvolution& call, Stream stream) {
  cuda::require("grid_convolution", call);
  const cuda::DeviceGuard guard(call.input.device.index);
  cuda::ConvolutionArgs a{};
  a.in = cuda::rows_of(call.input), a.out = cuda::rows_of(call.output);
  a.has_addend = call.addend.defined(), a.has_bias = call.bias.defined();
  if (a.has_addend) a.addend = cuda::rows_of(call.addend);
  a.weight = call.weight.data, a.bias = call.bias.data, a.weight_type = call.weight.dtype;
  a.taps = 1;
  for (int i = 0; i < 3; ++i) {
    a.grid[i] = static_cast<int>(call.grid[i]);
    a.kernel[i] = static_cast<int>(call.kernel[i]);
    a.taps *= a.kernel[i];
  }
  const int chunk = 16 / static_cast<int>(size_of(call.input.dtype));
  a.channels = static_cast<int>(call.input.shape[2] * call.input.shape[3]);
  a.chunks = a.channels / chunk;
  a.head_chunks = static_cast<int>(call.input.shape[3]) / chunk;
  a.strips_a_row = (a.grid[2] + cuda::kStrip - 1) / cuda::kStrip;
  a.strips = static_cast<int>(call.input.shape[0]) * a.grid[0] * a.grid[1] * a.strips_a_row;
  a.transposed = call.transposed;
  switch (call.input.dtype) {
    case DType::bf16: return cuda::convolve<cuda::bf16>(a, stream);
    case DType::f16: return cuda::convolve<cuda::f16>(a, stream);
    default: return cuda::convolve<float>(a, stream);
  }
}

void rotary_turn(const RotaryTurn& call, Stream stream) {
  cuda::require("rotary_turn", call);
  const cuda::DeviceGuard guard(call.input.device.index);
  const int chunk = 16 / static_cast<int>(size_of(call.input.dtype));
  cuda::TurnArgs a{};
  a.in = cuda::rows_of(call.input), a.out = cuda::rows_of(call.output);
  a.cos = static_cast<const float*>(call.cos.data),
  a.sin = static_cast<const float*>(call.sin.data);
  a.tokens = call.input.shape[1], a.heads = static_cast<int>(call.input.shape[2]);
  a.head_chunks = static_cast<int>(call.input.shape[3]) / chunk / (call.neighbours ? 1 : 2);
  a.tasks = call.input.shape[0] * a.tokens * a.heads * a.head_chunks;
  a.sign = call.back ? -1.f : 1.f;
  switch (call.input.dtype) {
    case DType::bf16: return cuda::turn<cuda::bf16>(a, call.neighbours, stream);
    case DType::f16: return cuda::turn<cuda::f16>(a, call.neighbours, stream);
    default: return cuda::turn<float>(a, call.neighbours, stream);
  }
}

bool is_capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda::check_call(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status),
                   "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace mhla
