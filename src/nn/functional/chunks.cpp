// Cutting into chunks, decay masks, and the state between chunks.
#include "nn/functional/chunks.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <vector>

#include "mhla/error.h"
#include "nn/functional/precision.h"

namespace mhla::nn::functional {

using at::Tensor;

Chunks::Chunks(const char* where, const Tensor& q, std::int64_t chunk, std::int64_t multiple)
    : tokens(q.sym_size(1).guard_int(__FILE__, __LINE__)) {
  if (tokens < 1) fail(where, "q: expected at least one token");
  if (chunk < 1) fail(where, "chunk: expected a positive number of tokens, got ", chunk);
  const std::int64_t rounded = (tokens + multiple - 1) / multiple * multiple;
  size = std::min(chunk, rounded);
  count = (tokens + size - 1) / size;
}

Tensor Chunks::cut(const Tensor& x) const {
  const std::int64_t fill = count * size - tokens;
  const Tensor rows = wide(x).transpose(1, 2);
  return (fill > 0 ? at::constant_pad_nd(rows, {0, 0, 0, fill}) : rows).unflatten(2, {count, size});
}

Tensor Chunks::cut_scalars(const Tensor& x) const { return cut(x.unsqueeze(-1)).squeeze(-1); }

Tensor Chunks::join(const Tensor& x) const {
  return x.flatten(2, 3).slice(2, 0, tokens).transpose(1, 2);
}

Tensor decay_mask(const Tensor& g) {
  const std::int64_t size = g.size(-1);
  const Tensor later = at::ones({size, size}, g.options().dtype(at::kBool)).triu(1);
  // Masked before the exponential: above the diagonal it would overflow.
  return (g.unsqueeze(-1) - g.unsqueeze(-2))
      .masked_fill(later, -std::numeric_limits<double>::infinity())
      .exp();
}

ChunkStates carry(const Tensor& update, const Tensor& decay, const std::optional<Tensor>& state) {
  const std::int64_t count = update.size(2);
  Tensor now = state ? state->to(update.scalar_type())
                     : at::zeros_symint({update.sym_size(0), update.sym_size(1), update.sym_size(3),
                                         update.sym_size(4)},
                                        update.options());
  if (!decay.defined()) {
    const Tensor after = at::cumsum(update, 2) + now.unsqueeze(2);
    return {at::cat({now.unsqueeze(2), after.slice(2, 0, count - 1)}, 2),
            after.select(2, count - 1)};
  }
  std::vector<Tensor> before;
  for (std::int64_t i = 0; i < count; ++i) {
    before.push_back(now);
    now = now * decay.select(2, i) + update.select(2, i);
  }
  return {at::stack(before, 2), now};
}

double scale_of(const Tensor& q, std::optional<double> scale) {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(-1))));
}

}  // namespace mhla::nn::functional
