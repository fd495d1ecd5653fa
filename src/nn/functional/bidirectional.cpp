// Attention in which every token sees every token. Products run in [B, H, N, D].
#include "nn/functional/bidirectional.h"

#include <ATen/ops/elu.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/softplus.h>

#include <cmath>
#include <string>
#include <vector>

#include "mhla/core/text.h"
#include "mhla/error.h"
#include "nn/functional/layers.h"
#include "nn/functional/precision.h"

namespace mhla::nn::functional {
namespace {

using at::Tensor;

double head_scale(const Tensor& q) { return 1.0 / std::sqrt(static_cast<double>(q.size(-1))); }

Tensor by_head(const Tensor& x) { return x.transpose(1, 2); }  // [B, N, H, D] <-> [B, H, N, D]

Tensor mean_token(const Tensor& x) { return x.mean(-2, /*keepdim=*/true); }  // [B, H, 1, D]

// x [B, H, N, D] . y [B, H, 1, D] -> [B, H, N, 1]
Tensor scores_with(const Tensor& x, const Tensor& y) { return at::matmul(x, y.transpose(-2, -1)); }

// (1/N) sum k v^T [B, H, D, Dv]. Both factors carry a part of 1/N, so that f16 cannot overflow.
Tensor mean_product(const Tensor& k, const Tensor& v, double scale = 1.0) {
  const c10::SymFloat n = c10::SymFloat(k.sym_size(-2));
  const c10::Scalar part((c10::SymFloat(scale) / n).sqrt());
  return at::matmul((k * part).transpose(-2, -1), v * part);
}

Tensor feature(const Tensor& x, c10::string_view map) {
  if (map == "relu") return at::relu(x);
  if (map == "relu_eps") return at::relu(x) + 1e-6;
  if (map == "elu1") return at::elu(x) + 1;
  if (map == "identity") return x;
  const std::vector<std::string> known{"relu", "relu_eps", "elu1", "identity"};
  const std::string near = nearest(std::string_view(map.data(), map.size()), known);
  fail("linear_attention", "feature_map: expected relu, relu_eps, elu1 or identity, got '", map,
       "'", near.empty() ? "" : "; did you mean " + near + "?");
}

Tensor turned(const Tensor& x, at::IntArrayRef grid) {  // [B, H, N, D]
  return grid.empty() ? x : by_head(rotary_grid(by_head(x), grid));
}

// ||x|| x^p / ||x^p|| over the full width: the direction sharpens, the length stays.
Tensor focus(const Tensor& x, const Tensor& scale, double power) {
  const Tensor flat = wide(x).flatten(2);
  const Tensor positive = (at::relu(flat) + 1e-6) / at::softplus(scale.to(flat.scalar_type()));
  const Tensor sharp = positive.pow(power);
  const auto length = [](const Tensor& t) { return at::linalg_vector_norm(t, 2, {-1}, true); };
  return (sharp / length(sharp) * length(positive))
      .to(x.scalar_type())
      .unflatten(-1, {x.size(2), x.size(3)});
}

}  // namespace

Tensor softmax_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                         std::optional<double> scale) {
  const c10::SymInt queries = q.sym_size(1), keys = k.sym_size(1);
  OptionalTensor mask;
  if (causal && queries != keys) {
    const std::int64_t earlier = (keys - queries).guard_int(__FILE__, __LINE__);
    mask = at::ones_symint({queries, keys}, q.options().dtype(at::kBool)).tril(earlier);
  }
  return by_head(at::scaled_dot_product_attention(by_head(q), by_head(k), by_head(v), mask,
                                                  /*dropout_p=*/0.0, causal && !mask, scale));
}

Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        c10::string_view feature_map, double eps, const OptionalTensor& q_den,
                        const OptionalTensor& k_den) {
  // f32, as Sana does: the sums over all tokens are not scaled down.
  const WideProducts no_autocast;
  const Tensor q_phi = by_head(feature(wide(q), feature_map));
  const Tensor k_phi = by_head(feature(wide(k), feature_map));
  const Tensor q_below = q_den ? by_head(wide(*q_den)) : q_phi;
  const Tensor k_below = k_den ? by_head(wide(*k_den)) : k_phi;
  const Tensor state = at::matmul(k_phi.transpose(-2, -1), by_head(wide(v)));
  const Tensor below = scores_with(q_below, k_below.sum(-2, /*keepdim=*/true)) + eps;
  return by_head(at::matmul(q_phi, state) / below).to(q.scalar_type());
}

Tensor focused_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& scale,
                         double power, double eps) {
  const Tensor q_phi = by_head(focus(q, scale, power)), k_phi = by_head(focus(k, scale, power));
  const Tensor below = scores_with(q_phi, mean_token(k_phi)) + eps;
  return by_head(at::matmul(q_phi, mean_product(k_phi, by_head(v))) / below);
}

Tensor inline_attention(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in) {
  const double s = head_scale(q_in);
  const Tensor q = by_head(q_in), k = by_head(k_in), v = by_head(v_in);
  const Tensor rest = 1 - scores_with(q, mean_token(k)) * s;  // what is missing to a row sum of 1
  return by_head(at::matmul(q, mean_product(k, v, s)) + rest * mean_token(v));
}

Tensor rala(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, at::IntArrayRef grid,
            double eps) {
  const Tensor q = by_head(at::elu(q_in) + 1), v = by_head(v_in);
  const Tensor plain = by_head(at::elu(k_in) + 1);
  const Tensor weight = at::softmax(scores_with(plain, mean_token(q)) * head_scale(q_in),
                                    /*dim=*/-2);
  const Tensor k = plain * (weight * c10::Scalar(plain.sym_size(-2)));
  const Tensor below = scores_with(q, mean_token(k)) + eps;
  return by_head(at::matmul(turned(q, grid), mean_product(turned(k, grid), v)) / below);
}

Tensor mala(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, at::IntArrayRef grid,
            double eps) {
  const double s = head_scale(q_in);
  const Tensor q = by_head(at::elu(q_in) + 1), k = by_head(at::elu(k_in) + 1), v = by_head(v_in);
  const Tensor z = scores_with(q, mean_token(k)) * s;
  const Tensor read = at::matmul(turned(q, grid), mean_product(turned(k, grid), v, s));
  return by_head(read * (1 + 1 / (z + eps)) - z * mean_token(v));
}

}  // namespace mhla::nn::functional
