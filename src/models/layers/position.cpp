#include "models/layers/position.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>

#include <cmath>

#include "mhla/error.h"

namespace mhla::models {

using at::Tensor;

Tensor sincos_positions(std::int64_t width, at::IntArrayRef grid) {
  if (width % 4 != 0) fail("models", "sin-cos positions: width ", width, " is no multiple of 4");
  if (grid.size() != 2) fail("models", "sin-cos positions: expected two axes, got ", grid.size());
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const std::int64_t quarter = width / 4, height = grid[0], across = grid[1];
  const Tensor omega = at::pow(10000.0,
                               at::arange(quarter, options) / -static_cast<double>(quarter));
  const auto encode = [&](std::int64_t extent) {
    const Tensor angles = at::arange(extent, options).unsqueeze(1) * omega;
    return at::cat({angles.sin(), angles.cos()}, 1);  // [extent, width / 2]
  };
  const Tensor column = encode(across).unsqueeze(0).expand({height, across, 2 * quarter});
  const Tensor row = encode(height).unsqueeze(1).expand({height, across, 2 * quarter});
  return at::cat({column, row}, -1).flatten(0, 1).to(at::kFloat);
}

Tensor resize_positions(const Tensor& positions, at::IntArrayRef from, at::IntArrayRef to) {
  const std::int64_t before = positions.size(1) - from[0] * from[1];
  if (before < 0) {
    fail("models", "positions: expected at least ", from[0] * from[1], ", got ", positions.size(1));
  }
  const Tensor grid = positions.slice(1, before).to(at::kFloat).transpose(1, 2).unflatten(2, from);
  const Tensor resized = at::_upsample_bicubic2d_aa(grid.contiguous(), to, /*align_corners=*/false,
                                                    std::nullopt, std::nullopt);
  const Tensor tokens = resized.flatten(2).transpose(1, 2).to(positions.scalar_type());
  return before == 0 ? tokens : at::cat({positions.slice(1, 0, before), tokens}, 1);
}

Tensor embed_timesteps(const Tensor& t, const TimestepOptions& o) {
  const std::int64_t half = o.width / 2;
  const auto options = t.options().dtype(o.type);
  const double rate = -std::log(10000.0) / static_cast<double>(half - o.shift);
  const Tensor frequencies = (at::arange(half, options) * rate).exp();
  const Tensor angles = t.to(o.type).unsqueeze(1) * frequencies;
  return at::cat({angles.cos(), angles.sin()}, 1).to(at::kFloat);
}

std::int64_t side_of(std::int64_t tokens) {
  const auto side = static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(tokens))));
  if (side * side == tokens) return side;
  fail("models", tokens, " positions are no square grid");
}

}  // namespace mhla::models
