// What the chunked recurrences share: cutting into chunks, decay masks, the state between chunks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace mhla::nn::functional {

// How N tokens are cut. A sequence shorter than a chunk is one chunk of its length, rounded up to
// `multiple`; the last chunk is filled with zeros.
struct Chunks {
  Chunks(const char* where, const at::Tensor& q, std::int64_t chunk, std::int64_t multiple = 1);

  at::Tensor cut(const at::Tensor& x) const;  // [B, N, H, D] -> [B, H, count, size, D], wide
  at::Tensor cut_scalars(const at::Tensor& x) const;  // [B, N, H] -> [B, H, count, size], wide
  at::Tensor join(const at::Tensor& x) const;         // [B, H, count, size, D] -> [B, N, H, D]

  std::int64_t tokens, size, count;
};

// exp(g_r - g_c) for c <= r, else 0. Sums of log decays g [..., size] -> [..., size, size].
at::Tensor decay_mask(const at::Tensor& g);

// The states before each chunk, and after the last. Each chunk multiplies the state by `decay`
// (nothing when undefined) and adds its own `update`.
struct ChunkStates {
  at::Tensor before;  // [B, H, count, Dk, Dv]
  at::Tensor after;   // [B, H, Dk, Dv]
};
ChunkStates carry(const at::Tensor& update, const at::Tensor& decay,
                  const std::optional<at::Tensor>& state);

double scale_of(const at::Tensor& q, std::optional<double> scale);

}  // namespace mhla::nn::functional
