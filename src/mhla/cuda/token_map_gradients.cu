// Gradients of the depthwise convolution's weight and bias: every tap is a sum over all tokens.
#include "mhla/cuda/token_rows.cuh"

namespace mhla::cuda {
namespace {

// A thread adds up a chunk of channels over strips of kStrip tokens, for one row of the kernel.
// Eight threads side by side take 128 bytes of a token.
constexpr int kThreads = 256, kStrip = 4, kLanes = 8, kStrips = kThreads / kLanes;

struct GradientArgs {
  Rows in, d_out;
  float* sums;  // [parts, taps + 1, channels]
  int strips, strips_a_part, strips_a_row, grid[3], kernel[3], taps, head_chunks, chunks, channels;
};

template <typename T, int KW>
__global__ void __launch_bounds__(kThreads) convolution_gradient_kernel(const GradientArgs a) {
  constexpr int kC = kChunk<T>, kWidth = kLanes * kC;
  __shared__ float all[kStrips / 4][kWidth];  // a quarter of the threads at a time
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int group = static_cast<int>(threadIdx.x) / kLanes;
  const int chunk = static_cast<int>(blockIdx.x) * kLanes + lane;
  const int part = static_cast<int>(blockIdx.y), kernel_row = static_cast<int>(blockIdx.z);
  const int dz = kernel_row / a.kernel[1], dy = kernel_row % a.kernel[1];
  float sum[KW + 1][kC] = {};  // the last: d_out alone
  const int end = min(a.strips, (part + 1) * a.strips_a_part);
  const int head = chunk / a.head_chunks, place = chunk % a.head_chunks;
  for (int strip = part * a.strips_a_part + group; strip < end && chunk < a.chunks;
       strip += kStrips) {
    const int line = strip / a.strips_a_row, x0 = (strip - line * a.strips_a_row) * kStrip;
    const int plane = line / a.grid[1], y = line - plane * a.grid[1];
    const int b = plane / a.grid[0], z = plane - b * a.grid[0];
    const int from_z = z + dz - a.kernel[0] / 2, from_y = y + dy - a.kernel[1] / 2;
    const bool inside = from_z >= 0 && from_z < a.grid[0] && from_y >= 0 && from_y < a.grid[1];
    const std::int64_t here = (static_cast<std::int64_t>(z) * a.grid[1] + y) * a.grid[2];
    const std::int64_t there = (static_cast<std::int64_t>(from_z) * a.grid[1] + from_y) * a.grid[2];
    Chunk d[kStrip], x[kStrip + KW - 1];
#pragma unroll
    for (int s = 0; s < kStrip; ++s) {
      d[s] = Chunk{};
      if (x0 + s < a.grid[2]) d[s] = *a.d_out.at(b, here + x0 + s, head, place);
    }
#pragma unroll
    for (int j = 0; j < kStrip + KW - 1; ++j) {
      const int from_x = x0 + j - KW / 2;
      x[j] = Chunk{};
      if (inside && from_x >= 0 && from_x < a.grid[2]) {
        x[j] = *a.in.at(b, there + from_x, head, place);
      }
    }
    float gradient[kStrip][kC];
#pragma unroll
    for (int s = 0; s < kStrip; ++s) {
      unpack<T>(d[s], gradient[s]);
#pragma unroll
      for (int c = 0; c < kC; ++c) sum[KW][c] += gradient[s][c];
    }
#pragma unroll
    for (int j = 0; j < kStrip + KW - 1; ++j) {
      float value[kC];
      unpack<T>(x[j], value);
#pragma unroll
      for (int dx = 0; dx < KW; ++dx) {
        const int s = j - dx;
        if (s < 0 || s >= kStrip) continue;
#pragma unroll
        for (int c = 0; c < kC; ++c) sum[dx][c] = fmaf(gradient[s][c], value[c], sum[dx][c]);
      }
    }
  }

  // Over the four groups of a warp, then over the warps, always in the same order
  const int width = a.channels;
  float* part_sums = a.sums + static_cast<std::int64_t>(part) * (a.taps + 1) * width;
#pragma unroll
  for (int dx = 0; dx <= KW; ++dx) {
#pragma unroll
    for (int c = 0; c < kC; ++c) {
      float total = sum[dx][c];
      total += __shfl_xor_sync(0xffffffffu, total, kLanes);
      total += __shfl_xor_sync(0xffffffffu, total, 2 * kLanes);
      if (group % 4 == 0) all[group / 4][lane * kC + c] = total;
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kWidth; i += kThreads) {
      const int channel = static_cast<int>(blockIdx.x) * kWidth + i;
      float total = 0.f;
#pragma unroll
      for (int w = 0; w < kStrips / 4; ++w) total += all[w][i];
      const bool bias = dx == KW;  // every row of the kernel has it; the first writes it
      if (channel < width && !(bias && kernel_row > 0)) {
        part_sums[static_cast<std::int64_t>(bias ? a.taps : kernel_row * KW + dx) * width +
                  channel] = total;
      }
    }
    __syncthreads();
  }
}

template <typename T>
void run_gradient(const GradientArgs& a, int parts, Stream stream) {
  const Grid grid{(a.chunks + kLanes - 1) / kLanes, parts,
                  static_cast<std::int64_t>(a.kernel[0]) * a.kernel[1]};
  const auto run = [&](void (*kernel)(GradientArgs)) {
    launch(kernel, grid, kThreads, 0, stream, a);
  };
  switch (a.kernel[2]) {
    case 1: return run(convolution_gradient_kernel<T, 1>);
    case 3: return run(convolution_gradient_kernel<T, 3>);
    case 5: return run(convolution_gradient_kernel<T, 5>);
    default: return run(convolution_gradient_kernel<T, 7>);
  }
}

}  // namespace
}  // namespace mhla::cuda

namespace mhla {

void grid_convolution_gradient(const GridConvolutionGradient& call, Stream stream) {
  if (const std::string why = refusal(call); !why.empty()) fail("grid_convolution_gradient", why);
  const cuda::DeviceGuard guard(call.input.device.index);
  cuda::GradientArgs a{};
  a.in = cuda::rows_of(call.input), a.d_out = cuda::rows_of(call.d_output);
  a.sums = static_cast<float*>(call.sums.data);
  a.taps = 1;
  for (int i = 0; i < 3; ++i) {
    a.grid[i] = static_cast<int>(call.grid[i]), a.kernel[i] = static_cast<int>(call.kernel[i]);
    a.taps *= a.kernel[i];
  }
  const int chunk = 16 / static_cast<int>(size_of(call.input.dtype));
  a.channels = static_cast<int>(call.input.shape[2] * call.input.shape[3]);
  a.chunks = a.channels / chunk;
  a.head_chunks = static_cast<int>(call.input.shape[3]) / chunk;
  a.strips_a_row = (a.grid[2] + cuda::kStrip - 1) / cuda::kStrip;
  a.strips = static_cast<int>(call.input.shape[0]) * a.grid[0] * a.grid[1] * a.strips_a_row;
  const int parts = static_cast<int>(call.sums.shape[0]);
  a.strips_a_part = (a.strips + parts - 1) / parts;
  switch (call.input.dtype) {
    case DType::bf16: return cuda::run_gradient<cuda::bf16>(a, parts, stream);
    case DType::f16: return cuda::run_gradient<cuda::f16>(a, parts, stream);
    default: return cuda::run_gradient<float>(a, parts, stream);
  }
}

}  // namespace mhla
