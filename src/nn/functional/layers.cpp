// Rotary positions, short convolutions, norms and gates, made of ATen operations.
#include "nn/functional/layers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/InferenceMode.h>

#include <map>
#include <mutex>
#include <sstream>
#include <vector>

#include "mhla/error.h"
#include "mhla/token_maps.h"
#include "nn/attention.h"
#include "nn/functional/norms.h"
#include "nn/functional/precision.h"
#include "nn/functional/token_maps.h"
#include "nn/stream.h"

namespace mhla::nn::functional {
namespace {

using at::Tensor;

// f64 angles cost nothing beside the rest and are the same on every device.
at::TensorOptions angle_options(const Tensor& x) { return x.options().dtype(at::kDouble); }

struct Turn {
  Tensor cos, sin;  // [N, 1, D/2]
};

Turn turn_by(const Tensor& angles, const Tensor& x) {
  const Tensor each = angles.unsqueeze(1);
  return {each.cos().to(wide_type(x)), each.sin().to(wide_type(x))};
}

// On a GPU tables are kept, because every layer of a network asks for the same one again. A table
// is of the stream that made it: another stream could read it too early.
template <typename MakeAngles>
Turn turn_of(const Tensor& x, const std::string& what, const MakeAngles& make_angles) {
  if (!is_plain_cuda(x)) return turn_by(make_angles(), x);
  const Stream stream = current_stream(x.device());
  if (is_capturing(stream)) return turn_by(make_angles(), x);
  constexpr std::size_t kMost = 16;
  static std::mutex mutex;
  static std::map<std::string, Turn>& kept = *new std::map<std::string, Turn>;  // outlives CUDA
  std::ostringstream key;
  key << what << ' ' << x.size(1) << ' ' << x.size(-1) << ' ' << wide_type(x) << ' ' << x.device()
      << ' ' << stream;
  const std::lock_guard lock(mutex);
  if (const auto found = kept.find(key.str()); found != kept.end()) return found->second;
  const c10::InferenceMode not_only_inference(false);
  const at::NoGradGuard no_gradient;
  if (kept.size() >= kMost) kept.clear();
  return kept[key.str()] = turn_by(make_angles(), x);
}

// A compiler that traces sees a tensor of Python's; it fuses the real form and knows no other.
bool is_traced(const Tensor& x) { return x.key_set().has(c10::DispatchKey::Python); }

// Numbers that at::view_as_complex takes: pairs begin where two numbers do.
Tensor at_even_offset(const Tensor& x) {
  return x.defined() && x.storage_offset() % 2 != 0 ? x.clone() : x;
}

Tensor rotate_pairs(const Tensor& x, const Turn& turn) {
  const auto& [cos, sin] = turn;
  if (auto done = turn_by_kernel(x, cos, sin, /*neighbours=*/true)) return *done;
  if (!is_traced(x)) {
    // One product of complex numbers instead of six operations: a third of the memory traffic.
    const Tensor even = at_even_offset(wide(x).contiguous());
    const Tensor pairs = at::view_as_complex(even.unflatten(-1, {-1, 2}));
    const Tensor turned = at::view_as_real(pairs * at::complex(cos, sin)).flatten(-2);
    if (turned.requires_grad()) turned.register_hook(at_even_offset);
    return turned.to(x.scalar_type());
  }
  const Tensor pairs = wide(x).unflatten(-1, {-1, 2});
  const Tensor a = pairs.select(-1, 0), b = pairs.select(-1, 1);
  return at::stack({a * cos - b * sin, b * cos + a * sin}, -1).flatten(-2).to(x.scalar_type());
}

std::int64_t tokens_of(at::IntArrayRef grid) {
  std::int64_t tokens = 1;
  for (const std::int64_t extent : grid) tokens *= extent;
  return tokens;
}

void check_grid(const char* where, const Tensor& x, at::IntArrayRef grid) {
  if (x.sym_size(1) == tokens_of(grid)) return;
  fail(where, "x: expected ", tokens_of(grid), " tokens for the grid ", grid, ", got ",
       x.sym_size(1));
}

// Angles [extent, pairs] of one axis, spread over the tokens of the grid: [N, pairs].
Tensor along_axis(const Tensor& angles, at::IntArrayRef grid, std::size_t axis) {
  std::vector<std::int64_t> own(grid.size() + 1, 1), all(grid.begin(), grid.end());
  own[axis] = grid[axis];
  own.back() = angles.size(1);
  all.push_back(angles.size(1));
  return angles.reshape(own).expand(all).reshape({-1, angles.size(1)});
}

// Angles [positions, pairs]: position * base^(-2j/width).
Tensor angle_table(const Tensor& positions, std::int64_t pairs, double base) {
  const Tensor exponents = at::arange(pairs, positions.options()) / (-static_cast<double>(pairs));
  return positions.unsqueeze(1) * at::pow(base, exponents);
}

std::string key_of(const char* what, at::IntArrayRef grid, double base) {
  std::ostringstream key;
  key << what << ' ' << grid << ' ' << base;
  return key.str();
}

}  // namespace

Tensor rotary(const Tensor& x, double base, const OptionalTensor& offset) {
  const std::int64_t width = x.size(-1);
  if (width % 2 != 0) fail("rotary", "x: expected an even head size, got ", width);
  const auto angles = [&] {
    Tensor positions = at::arange(c10::Scalar(x.sym_size(1)), angle_options(x));
    if (offset) positions = positions + *offset;
    return angle_table(positions, width / 2, base);
  };
  const auto [cos, sin] = offset ? turn_by(angles(), x)
                                 : turn_of(x, "rotary " + std::to_string(base), angles);
  if (auto done = turn_by_kernel(x, cos, sin, /*neighbours=*/false)) return *done;
  const Tensor wide_x = wide(x);
  const Tensor a = wide_x.slice(-1, 0, width / 2), b = wide_x.slice(-1, width / 2);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1).to(x.scalar_type());
}

Tensor rotary_grid(const Tensor& x, at::IntArrayRef grid) {
  check_grid("rotary_grid", x, grid);
  const std::int64_t width = x.size(-1);
  if (grid.size() != 2) fail("rotary_grid", "grid: expected two axes, got ", grid);
  if (width % 4 != 0) fail("rotary_grid", "x: expected a head size divisible by 4, got ", width);
  const auto angles = [&] {
    const Tensor angle = at::pow(10000.0, -at::linspace(0, 1, width / 4, angle_options(x)));
    std::vector<Tensor> axes;
    for (std::size_t axis = 0; axis < 2; ++axis) {
      const Tensor positions = at::arange(grid[axis], angle_options(x));
      axes.push_back(along_axis(positions.unsqueeze(1) * angle, grid, axis));
    }
    return at::cat(axes, -1);
  };
  return rotate_pairs(x, turn_of(x, key_of("grid", grid, 10000.0), angles));
}

namespace {

// x [B, N, H, D]
Turn axes_turn(const Tensor& x, at::IntArrayRef grid, double base) {
  check_grid("rotary_axes", x, grid);
  if (x.size(-1) % 2 != 0) fail("rotary_axes", "x: expected an even head size, got ", x.size(-1));
  const std::int64_t axes = static_cast<std::int64_t>(grid.size());
  const std::int64_t pairs = x.size(-1) / 2, share = pairs / axes;
  const auto angles = [&] {
    std::vector<Tensor> parts;
    for (std::size_t axis = 0; axis < grid.size(); ++axis) {
      const std::int64_t own = axis == 0 ? pairs - share * (axes - 1) : share;
      const Tensor positions = at::arange(grid[axis], angle_options(x));
      parts.push_back(along_axis(angle_table(positions, own, base), grid, axis));
    }
    return at::cat(parts, -1);
  };
  return turn_of(x, key_of("axes", grid, base), angles);
}

}  // namespace

Tensor rotary_axes(const Tensor& x, at::IntArrayRef grid, double base) {
  return rotate_pairs(x, axes_turn(x, grid, base));
}

TurnedAndPlain normed_and_turned(const Tensor& x, const Norm& norm, const HeadTurn& turn) {
  const auto by_head = [&turn](const Tensor& t) { return t.unflatten(-1, {turn.heads, -1}); };
  const Turn table = axes_turn(by_head(x), turn.grid, 10000.0);
  if (auto done = turn_normed_by_kernel(x, norm, turn, table.cos, table.sin)) return *done;
  const Tensor plain = apply_feature_map(turn.map, by_head(normed(x, norm)));
  return {rotate_pairs(plain, table), turn.plain ? plain : Tensor()};
}

std::tuple<Tensor, Tensor> short_convolution(const Tensor& x, const Tensor& weight,
                                             const OptionalTensor& bias,
                                             const OptionalTensor& state) {
  const std::int64_t before = weight.size(-1) - 1;
  const Tensor tokens_last = x.transpose(1, 2);
  const Tensor padded = state ? at::cat({state->to(x.scalar_type()), tokens_last}, -1)
                              : at::constant_pad_nd(tokens_last, {before, 0});
  const std::vector<std::int64_t> one{1}, zero{0};
  const Tensor y = at::conv1d(padded, weight, bias, /*stride=*/one, /*padding=*/zero,
                              /*dilation=*/one, /*groups=*/weight.size(0));
  const Tensor last = padded.slice_symint(-1, padded.sym_size(-1) - before).contiguous();
  return {at::silu(y).transpose(1, 2), last};
}

Tensor unit_norm(const Tensor& x, double eps) {
  const Tensor wide_x = wide(x);
  return (wide_x * (wide_x.square().sum(-1, /*keepdim=*/true) + eps).rsqrt()).to(x.scalar_type());
}

Tensor gated_head_norm(const Tensor& o, const OptionalTensor& gate, const Tensor& weight,
                       double eps) {
  const Tensor wide_o = wide(o);
  Tensor y = at::rms_norm(wide_o, weight.sizes(), weight.to(wide_o.scalar_type()), eps);
  if (gate) y = y * at::silu(gate->to(wide_o.scalar_type()));
  return y.to(o.scalar_type());
}

Tensor gate_then_norm(const Tensor& y, const Tensor& z, const Tensor& weight, double eps) {
  const Tensor gated = wide(y) * at::silu(z.to(wide_type(y)));
  return at::rms_norm(gated, weight.sizes(), weight.to(gated.scalar_type()), eps)
      .to(y.scalar_type());
}

Tensor grid_convolution(const Tensor& v, at::IntArrayRef grid, const Tensor& weight,
                        const OptionalTensor& bias, const OptionalTensor& addend) {
  check_grid("grid_convolution", v, grid);
  if (auto done = convolve_by_kernel(v, grid, weight, bias, addend)) return *done;
  const std::int64_t channels = weight.size(0);
  const bool shared = channels == v.size(3) && v.size(2) != 1;
  if (!shared && channels != v.size(2) * v.size(3)) {
    fail("grid_convolution", "weight: expected ", v.size(2) * v.size(3), " channels (or ",
         v.size(3), ", shared by the heads), got ", channels);
  }
  // [B, N, H, D] -> [B * H, D, grid] when shared, [B, H * D, grid] otherwise
  const Tensor rows = shared ? v.permute({0, 2, 3, 1}).flatten(0, 1) : v.flatten(2).transpose(1, 2);
  const Tensor picture = rows.unflatten(-1, grid);
  const std::vector<std::int64_t> padding(grid.size(), weight.size(-1) / 2);
  const std::vector<std::int64_t> ones(grid.size(), 1);
  const Tensor y = grid.size() == 3
                       ? at::conv3d(picture, weight, bias, ones, padding, ones, channels)
                       : at::conv2d(picture, weight, bias, ones, padding, ones, channels);
  const Tensor tokens = y.flatten(2).transpose(1, 2);  // [B * H, N, D] or [B, N, H * D]
  const Tensor out = shared ? tokens.unflatten_symint(0, {v.sym_size(0), v.sym_size(2)})
                                  .transpose(1, 2)
                            : tokens.unflatten(-1, {v.size(2), v.size(3)});
  return addend ? *addend + out : out;
}

}  // namespace mhla::nn::functional
