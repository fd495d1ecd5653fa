// What the kernels of norms.h ask of their tensors.
#include "mhla/norms.h"

#include <algorithm>
#include <utility>

namespace mhla {
namespace {

constexpr std::int64_t kWidest = 2048;       // a row stays in the registers of a warp
constexpr std::int64_t kWidestFocus = 1024;  // with its gradient and the sums of its columns
constexpr std::int64_t kChunk = 8;           // elements: 16 bytes of 16-bit numbers
// Of 1024 channels of length 1 the largest is 2^-5 or more. The square of its power, 2^-120, is
// still an f32 of full precision.
constexpr double kHighestPower = 12.0;
constexpr std::uintptr_t kAlignment = 16;

using Named = std::pair<const char*, const TensorView*>;

bool is_f32_like(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

bool is_aligned(const TensorView& x) {
  return reinterpret_cast<std::uintptr_t>(x.data) % kAlignment == 0;
}

std::string said(const char* what, const std::string& why) {
  return std::string(what) + ": " + why;
}

// [B, N, C] in whole chunks.
std::string refuses_rows(const Named& named, const TensorView& like, DType dtype) {
  const auto& [what, x] = named;
  if (x->rank != 3 || x->shape != like.shape) return said(what, "expected the shape of x");
  if (x->device != like.device) return said(what, "is on another device than x");
  if (x->dtype != dtype) return said(what, std::string("got ") + name(x->dtype));
  if (x->strides[2] != 1 || x->strides[0] % kChunk != 0 || x->strides[1] % kChunk != 0 ||
      !is_aligned(*x)) {
    return said(what, "rows are not whole chunks");
  }
  return {};
}

// [B, C] or [C].
std::string refuses_vectors(const Named& named, const TensorView& x, bool each_sample) {
  const auto& [what, v] = named;
  if (!v->defined()) return {};
  const int last = each_sample ? 1 : 0;
  if (v->rank != last + 1 || v->shape[last] != x.shape[2] ||
      (each_sample && v->shape[0] != x.shape[0])) {
    return said(what, "got shape " + v->shape_string());
  }
  if (v->device != x.device || !is_f32_like(v->dtype)) return said(what, "its type or device");
  if (v->strides[last] != 1 || (each_sample && v->strides[0] % kChunk != 0) || !is_aligned(*v)) {
    return said(what, "is not whole chunks");
  }
  return {};
}

std::string refuses_input(const TensorView& x) {
  if (x.rank != 3) return "x: expected [B, N, C]";
  if (x.device.kind != Device::Kind::cuda) return "x: is not on a CUDA device";
  if (!is_f32_like(x.dtype)) return said("x", std::string("got ") + name(x.dtype));
  if (x.shape[2] % kChunk != 0 || x.shape[2] < kChunk || x.shape[2] > kWidest) {
    return "x: expected up to 2048 channels in whole chunks";
  }
  if (x.size() == 0 || x.shape[0] * x.shape[1] > 0x7fffffff) return "x: number of rows";
  return {};
}

bool may_be(DType out, DType x) { return out == x || (x == DType::f32 && is_f32_like(out)); }

std::string refuses_statistics(const TensorView& s, const TensorView& x) {
  if (!s.defined()) return {};
  if (s.dtype == DType::f32 && s.size() == 2 * x.shape[0] * x.shape[1] && s.device == x.device) {
    return {};
  }
  return "statistics: expected f32 [B, N, 2]";
}

std::string refuses_turn(const RowNorm& call) {
  if (!call.cos.defined()) return {};
  const std::int64_t pairs = call.cos.rank == 2 ? call.cos.shape[1] : 0;
  if (pairs <= 0 || call.x.shape[2] % (2 * pairs) != 0 || 2 * pairs % kChunk != 0) {
    return "cos: expected half the width of a head";
  }
  for (const TensorView* table : {&call.cos, &call.sin}) {
    if (table->dtype != DType::f32 || table->size() != call.x.shape[1] * pairs ||
        !is_aligned(*table) || table->device != call.x.device) {
      return "cos, sin: expected f32 [N, D / 2]";
    }
  }
  return {};
}

std::string refuses_focus(const TensorView& x, const TensorView& factor, double power) {
  if (std::string why = refuses_input(x); !why.empty()) return why;
  if (x.shape[2] > kWidestFocus) return "x: expected up to 1024 channels";
  if (!factor.defined() || factor.dtype != DType::f32) return "factor: expected f32 [C]";
  if (!(power >= 1.0 && power <= kHighestPower)) return "power: expected 1 to 12";
  return refuses_vectors({"factor", &factor}, x, false);
}

// The first that is not empty.
std::string first_of(std::initializer_list<std::string> reasons) {
  for (const std::string& reason : reasons) {
    if (!reason.empty()) return reason;
  }
  return {};
}

}  // namespace

std::string refusal(const RowNorm& call) {
  const TensorView& x = call.x;
  if (std::string why = refuses_input(x); !why.empty()) return why;
  if (!may_be(call.out.dtype, x.dtype))
    return said("out", std::string("got ") + name(call.out.dtype));
  if (call.branch.defined() != call.sum.defined()) return "sum: is there with a branch, else not";
  if (call.gate.defined() && !call.branch.defined()) return "gate: needs a branch";
  if (call.scale.defined() != call.shift.defined()) return "shift: with a scale, else not";
  if (call.then_weight.defined() != call.then_bias.defined()) return "then_bias: both or none";
  for (const TensorView* each : {&call.gate, &call.scale, &call.shift}) {
    if (each->defined() && each->dtype != call.out.dtype) return "gate, scale, shift: another type";
  }
  const auto rows = [&x](const Named& named, DType dtype) {
    return named.second->defined() ? refuses_rows(named, x, dtype) : std::string();
  };
  return first_of(
      {refuses_rows({"x", &x}, x, x.dtype), refuses_rows({"out", &call.out}, x, call.out.dtype),
       rows({"branch", &call.branch}, call.out.dtype), rows({"sum", &call.sum}, x.dtype),
       rows({"plain", &call.plain}, call.out.dtype), refuses_vectors({"gate", &call.gate}, x, true),
       refuses_vectors({"scale", &call.scale}, x, true),
       refuses_vectors({"shift", &call.shift}, x, true),
       refuses_vectors({"weight", &call.weight}, x, false),
       refuses_vectors({"bias", &call.bias}, x, false),
       refuses_vectors({"then_weight", &call.then_weight}, x, false),
       refuses_vectors({"then_bias", &call.then_bias}, x, false),
       refuses_statistics(call.statistics, x), refuses_turn(call)});
}

std::string refusal(const RowNormBackward& call) {
  const TensorView& x = call.x;
  if (std::string why = refuses_input(x); !why.empty()) return why;
  const DType type = call.d_out.dtype;
  if (!may_be(type, x.dtype)) return said("d_out", std::string("got ") + name(type));
  if (!call.statistics.defined()) return "statistics: expected those of the forward pass";
  if (call.d_branch.defined() && !call.branch.defined()) return "d_branch: needs a branch";
  if (call.sums.defined() &&
      (call.sums.rank != 4 || call.sums.dtype != DType::f32 || call.sums.shape[0] != 3 ||
       call.sums.shape[1] != x.shape[0] || call.sums.shape[3] != x.shape[2])) {
    return "sums: expected f32 [3, B, parts, C]";
  }
  const auto rows = [&x](const Named& named, DType dtype) {
    return named.second->defined() ? refuses_rows(named, x, dtype) : std::string();
  };
  return first_of(
      {refuses_rows({"x", &x}, x, x.dtype), refuses_rows({"d_out", &call.d_out}, x, type),
       refuses_rows({"d_x", &call.d_x}, x, x.dtype), rows({"branch", &call.branch}, type),
       rows({"d_branch", &call.d_branch}, type), rows({"d_sum", &call.d_sum}, x.dtype),
       refuses_vectors({"gate", &call.gate}, x, true),
       refuses_vectors({"scale", &call.scale}, x, true),
       refuses_vectors({"weight", &call.weight}, x, false),
       refuses_statistics(call.statistics, x)});
}

std::string refusal(const Focus& call) {
  const TensorView& x = call.x;
  return first_of({refuses_focus(x, call.factor, call.power), refuses_rows({"x", &x}, x, x.dtype),
                   refuses_rows({"out", &call.out}, x, x.dtype)});
}

std::string refusal(const FocusBackward& call) {
  const TensorView &x = call.x, &sums = call.sums;
  if (sums.defined() &&
      (sums.dtype != DType::f32 || sums.rank != 2 || sums.shape[1] != x.shape[2] ||
       sums.shape[0] != focus_parts(x.shape[0] * x.shape[1]) || sums.strides[0] != x.shape[2] ||
       sums.strides[1] != 1 || sums.device != x.device)) {
    return "sums: expected f32 [parts, C], contiguous and on the device of x";
  }
  return first_of({refuses_focus(x, call.factor, call.power), refuses_rows({"x", &x}, x, x.dtype),
                   refuses_rows({"d_out", &call.d_out}, x, x.dtype),
                   refuses_rows({"d_x", &call.d_x}, x, x.dtype)});
}

std::int64_t row_norm_parts(std::int64_t batch, std::int64_t tokens, std::int64_t channels) {
  constexpr std::int64_t kBlocks = 1024, kFewestTokens = 64;  // several blocks a multiprocessor
  const std::int64_t strips = (channels + 255) / 256;
  const std::int64_t wanted = (kBlocks + batch * strips - 1) / (batch * strips);
  return std::clamp<std::int64_t>(wanted, 1, (tokens + kFewestTokens - 1) / kFewestTokens);
}

std::int64_t focus_parts(std::int64_t rows) {
  constexpr std::int64_t kBlocks = 1024, kFewestRows = 64;  // as above
  return std::clamp<std::int64_t>((rows + kFewestRows - 1) / kFewestRows, 1, kBlocks);
}

}  // namespace mhla
