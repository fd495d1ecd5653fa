// What the kernels of token_maps.h ask of their tensors.
#include "mhla/token_maps.h"

#include <utility>

namespace mhla {
namespace {

constexpr std::int64_t kMostTaps = 343;  // 7 x 7 x 7; the weights of 64 channels in shared memory
constexpr std::int64_t kWidestKernel = 7;
constexpr std::size_t kChunkBytes = 16;

bool is_f32_like(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

// Rows of all channels lie together, in whole chunks of 16 bytes.
std::string refuses_rows(const char* what, const TensorView& x, const TensorView& like) {
  const auto refuse = [what](const std::string& why) { return std::string(what) + ": " + why; };
  if (x.rank != 4) return refuse("expected [B, N, H, D]");
  if (x.device.kind != Device::Kind::cuda) return refuse("is not on a CUDA device");
  if (!is_f32_like(x.dtype)) return refuse(std::string("got ") + name(x.dtype));
  if (x.dtype != like.dtype || x.shape != like.shape || x.device != like.device) {
    return refuse("differs from the input in type, shape or device");
  }
  const auto chunk = static_cast<std::int64_t>(kChunkBytes / size_of(x.dtype));
  if (x.strides[3] != 1 || (x.shape[2] > 1 && x.strides[2] % chunk != 0) ||
      x.shape[3] % chunk != 0) {
    return refuse("a head is not whole chunks of 16 bytes");
  }
  if (x.strides[0] % chunk != 0 || x.strides[1] % chunk != 0 ||
      reinterpret_cast<std::uintptr_t>(x.data) % kChunkBytes != 0) {
    return refuse("rows are not aligned to 16 bytes");
  }
  return {};
}

using Extents = std::array<std::int64_t, 3>;

std::string refuses_kernel(const TensorView& input, const Extents& grid, const Extents& kernel,
                           std::int64_t& taps) {
  std::int64_t tokens = 1;
  taps = 1;
  for (int i = 0; i < 3; ++i) {
    if (kernel[i] % 2 == 0) return "kernel: expected odd extents";
    tokens *= grid[i];
    taps *= kernel[i];
  }
  if (kernel[2] > kWidestKernel || taps > kMostTaps) return "kernel: too large";
  if (input.shape[0] * tokens > 0x7fffffff) return "input: too many tokens";
  if (tokens != input.shape[1]) return "grid: differs from the number of tokens";
  return {};
}

}  // namespace

std::string refusal(const GridConvolution& call) {
  for (const auto& [what, x] : {std::pair{"input", &call.input}, {"output", &call.output}}) {
    if (std::string why = refuses_rows(what, *x, call.input); !why.empty()) return why;
  }
  if (call.addend.defined()) {
    if (std::string why = refuses_rows("addend", call.addend, call.input); !why.empty()) return why;
  }
  std::int64_t taps = 1;
  if (std::string why = refuses_kernel(call.input, call.grid, call.kernel, taps); !why.empty()) {
    return why;
  }
  const std::int64_t channels = call.input.shape[2] * call.input.shape[3];
  if (!is_f32_like(call.weight.dtype) || call.weight.size() != channels * taps) {
    return "weight: expected one kernel for each channel";
  }
  if (call.bias.defined() &&
      (call.bias.dtype != call.weight.dtype || call.bias.size() != channels)) {
    return "bias: expected one number for each channel, of the weight's type";
  }
  return {};
}

std::string refusal(const GridConvolutionGradient& call) {
  for (const auto& [what, x] : {std::pair{"input", &call.input}, {"d_output", &call.d_output}}) {
    if (std::string why = refuses_rows(what, *x, call.input); !why.empty()) return why;
  }
  std::int64_t taps = 1;
  if (std::string why = refuses_kernel(call.input, call.grid, call.kernel, taps); !why.empty()) {
    return why;
  }
  const TensorView& sums = call.sums;
  if (sums.rank != 3 || sums.dtype != DType::f32 || sums.shape[1] != taps + 1 ||
      sums.shape[2] != call.input.shape[2] * call.input.shape[3] ||
      sums.size() != sums.shape[0] * sums.strides[0]) {
    return "sums: expected f32 [parts, taps + 1, H * D]";
  }
  return {};
}

std::string refusal(const RotaryTurn& call) {
  for (const auto& [what, x] : {std::pair{"input", &call.input}, {"output", &call.output}}) {
    if (std::string why = refuses_rows(what, *x, call.input); !why.empty()) return why;
  }
  const std::int64_t pairs = call.input.shape[3] / 2;
  if (!call.neighbours &&
      pairs % (16 / static_cast<std::int64_t>(size_of(call.input.dtype))) != 0) {
    return "half a head is not whole chunks of 16 bytes";
  }
  for (const TensorView* table : {&call.cos, &call.sin}) {
    if (table->dtype != DType::f32 || table->size() != call.input.shape[1] * pairs) {
      return "cos, sin: expected f32 [N, D / 2]";
    }
  }
  return {};
}

}  // namespace mhla
