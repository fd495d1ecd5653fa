// Where a token stands, and when: position embeddings of grids, timesteps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mhla::models {

// DiT: half of the channels for the column, half for the row, each [sin | cos]. -> f32 [N, width]
at::Tensor sincos_positions(std::int64_t width, at::IntArrayRef grid);

// Learned positions [1, P + N, C] of one grid on another, bicubic and antialiased as timm's; the
// first P (class tokens) stay.
at::Tensor resize_positions(const at::Tensor& positions, at::IntArrayRef from, at::IntArrayRef to);

struct TimestepOptions {
  std::int64_t width = 256;
  std::int64_t shift = 0;  // frequencies 10000^(-k / (width/2 - shift)); diffusers has 1 for DiT
  at::ScalarType type = at::kFloat;  // in which angles are computed
};
// t [B] -> f32 [B, width]: [cos | sin]
at::Tensor embed_timesteps(const at::Tensor& t, const TimestepOptions& options = {});

// H x W of a square picture with N tokens; throws where N is no square.
std::int64_t side_of(std::int64_t tokens);

}  // namespace mhla::models
