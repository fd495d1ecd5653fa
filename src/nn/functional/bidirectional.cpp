// Attention in which every token sees every token. The linear ones are MHLA whose blocks all weigh
// the same, so the operator's kernels serve them, and LibTorch's operations what those refuse.
#include "nn/functional/bidirectional.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>

#include <cmath>
#include <string>
#include <vector>

#include "mhla/core/text.h"
#include "mhla/error.h"
#include "nn/attention.h"
#include "nn/functional/layers.h"
#include "nn/functional/norms.h"
#include "nn/functional/precision.h"

namespace mhla::nn::functional {
namespace {

using at::Tensor;

// NOTE: size() would fix all sizes that a compiler does not know yet, not only this one.
double head_scale(const Tensor& q) {
  return 1.0 / std::sqrt(static_cast<double>(q.sym_size(-1).guard_int(__FILE__, __LINE__)));
}

Tensor by_head(const Tensor& x) { return x.transpose(1, 2); }  // [B, N, H, D] <-> [B, H, N, D]

Tensor mean_token(const Tensor& x) { return x.mean(1, /*keepdim=*/true); }  // [B, 1, H, D]

// x [B, N, H, D] . y [B, 1, H, D] -> [B, N, H, 1]
Tensor scores_with(const Tensor& x, const Tensor& y) {
  return by_head(at::matmul(by_head(x), by_head(y).transpose(-2, -1)));
}

// x [B, N, H, 1] times y [B, 1, H, D] -> [B, N, H, D]; a product, whose gradients are products,
// too.
Tensor times_row(const Tensor& x, const Tensor& y) {
  return by_head(at::matmul(by_head(x), by_head(y)));
}

c10::SymFloat tokens_of(const Tensor& x) { return c10::SymFloat(x.sym_size(1)); }

// NOTE: a product with a Scalar would fix what a compiler does not know yet to one number.
Tensor scaled(const Tensor& x, const c10::SymFloat& factor) {
  if (!factor.is_symbolic()) return x * factor.as_float_unchecked();
  return x * at::full({}, c10::Scalar(factor), x.options().dtype(wide_type(x)));
}

FeatureMap feature_map_of(c10::string_view text) {
  std::vector<std::string> known;
  for (const FeatureMap map :
       {FeatureMap::relu, FeatureMap::relu_eps, FeatureMap::elu1, FeatureMap::identity}) {
    known.emplace_back(name(map));
    if (std::string_view(text.data(), text.size()) == known.back()) return map;
  }
  const std::string near = nearest(std::string_view(text.data(), text.size()), known);
  fail("linear_attention", "feature_map: expected relu, relu_eps, elu1 or identity, got '", text,
       "'", near.empty() ? "" : "; did you mean " + near + "?");
}

// Blocks share the work of a device out, and mixing their summaries costs blocks^2 beside 2 N. A
// GPU needs them early, and its kernels for short sequences have no summaries; on a CPU heads are
// enough to share out until the mixing is next to nothing. A compiler that does not know the number
// of tokens would have to guard it: one block fits any.
std::vector<std::int64_t> equal_blocks(const Tensor& x) {
  const std::int64_t worthwhile = x.is_cuda() ? 16 : 4096;
  return {x.sym_size(1).maybe_as_int().value_or(1) >= worthwhile ? 16 : 1};
}

struct Global {
  Normalizer normalizer = Normalizer::none;
  FeatureMap feature_map = FeatureMap::identity;
  double scale = 1.0;
  double eps = 0.0;
  bool mean = true;  // over the keys, in numerator and denominator
};

// Whether to call the operator; f64 it would take, but slowly and not on every device. Sizes that a
// compiler does not know count as within bounds, for asking would guard them.
bool served_by_operator(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& q_den,
                        const Tensor& k_den) {
  constexpr std::int64_t kWidest = 256, kMostSamples = 65535;  // of the CUDA kernels
  if (!q.is_cpu() && !q.is_cuda() && !q.is_meta()) return false;
  const bool casts = !q.is_meta() && at::autocast::is_autocast_enabled(q.device().type());
  for (const Tensor* x : {&q, &k, &v, &q_den, &k_den}) {
    if (!x->defined()) continue;
    if (x->dim() != 4) return true;  // to be told what is expected
    const at::ScalarType type = x->scalar_type();
    if (type != at::kFloat && type != at::kBFloat16 && type != at::kHalf) return false;
    if (type != q.scalar_type() && !casts) return false;
    for (const int axis : {0, 2}) {  // a size of 1 spreads over the others'
      if (x->sym_size(axis).maybe_as_int() != q.sym_size(axis).maybe_as_int()) return false;
    }
    if (x->sym_size(1).maybe_as_int() == 0) return false;
  }
  return !q.is_cuda() || (q.sym_size(0).maybe_as_int().value_or(0) <= kMostSamples &&
                          q.sym_size(3).maybe_as_int().value_or(0) <= kWidest);
}

// over_all_tokens by LibTorch's operations, in f32 for 16-bit inputs.
Tensor composed(const Tensor& q_in, const Tensor& k_in, const Tensor& v, const Global& call,
                const Tensor& q_den, const Tensor& k_den) {
  const WideProducts no_autocast;
  const Tensor q = apply_feature_map(call.feature_map, wide(q_in));
  const Tensor k = apply_feature_map(call.feature_map, wide(k_in));
  const Tensor state = at::matmul(by_head(k).transpose(-2, -1), by_head(wide(v)));
  c10::SymFloat weight = call.scale;
  if (call.mean) weight = weight / tokens_of(k);
  const Tensor above = scaled(by_head(at::matmul(by_head(q), state)), weight);
  if (call.normalizer == Normalizer::none) return above.to(q_in.scalar_type());
  const Tensor sum = (k_den.defined() ? wide(k_den) : k).sum(1, /*keepdim=*/true);
  const Tensor below = scaled(scores_with(q_den.defined() ? wide(q_den) : q, sum), weight);
  return (above / (below + call.eps)).to(q_in.scalar_type());
}

// sum_j (q_i . k_j) v_j [B, N, H, Dv], normalised by sum_j q_den_i . k_den_j where asked to.
Tensor over_all_tokens(const Tensor& q, const Tensor& k, const Tensor& v, const Global& call,
                       const Tensor& q_den = {}, const Tensor& k_den = {}) {
  if (!served_by_operator(q, k, v, q_den, k_den)) return composed(q, k, v, call, q_den, k_den);
  AttentionOptions options{.layout = {.cut = {.blocks = equal_blocks(q)}},
                           .normalizer = call.normalizer,
                           .feature_map = call.feature_map,
                           .scale = call.scale,
                           .eps = call.eps};
  const std::vector<std::int64_t> columns = equal_blocks(k);
  const auto queries = q.sym_size(1).maybe_as_int(), keys = k.sym_size(1).maybe_as_int();
  if (!queries || queries != keys) options.layout_k = Layout{.cut = {.blocks = columns}};
  const c10::SymFloat weight = call.mean ? c10::SymFloat(1.0) / tokens_of(k) : c10::SymFloat(1.0);
  const Tensor mixing = at::full({options.layout.cut.blocks[0], columns[0]}, c10::Scalar(weight),
                                 q.options().dtype(at::kFloat));
  return attention(q, k, v, mixing, options, q_den, k_den);
}

Tensor turned(const Tensor& x, at::IntArrayRef grid) {
  return grid.empty() ? x : rotary_grid(x, grid);
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
  const FeatureMap map = feature_map_of(feature_map);
  Global call{.normalizer = Normalizer::exact, .feature_map = map, .eps = eps, .mean = false};
  if (!q_den && !k_den) return over_all_tokens(q, k, v, call);
  // Features of the denominator are applied, and the operator has one map for all four.
  call.feature_map = FeatureMap::identity;
  const Tensor q_phi = apply_feature_map(map, q), k_phi = apply_feature_map(map, k);
  return over_all_tokens(q_phi, k_phi, v, call, q_den.value_or(q_phi), k_den.value_or(k_phi));
}

Tensor focused_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& scale,
                         double power, double eps) {
  return over_all_tokens(focused(q, scale, power), focused(k, scale, power), v,
                         {.normalizer = Normalizer::exact, .eps = eps});
}

Tensor inline_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
  const double s = head_scale(q);
  const Tensor rest = 1 - scores_with(q, mean_token(k)) * s;  // what is missing to a row sum of 1
  return over_all_tokens(q, k, v, {.scale = s}) + times_row(rest, mean_token(v));
}

Tensor rala(const Tensor& q_in, const Tensor& k_in, const Tensor& v, at::IntArrayRef grid,
            double eps) {
  const Tensor q = at::elu(q_in) + 1, plain = at::elu(k_in) + 1;
  const Tensor weight = at::softmax(scores_with(plain, mean_token(q)) * head_scale(q), /*dim=*/1);
  // Under autocast the softmax is f32, and so would be k.
  const Tensor share = scaled(weight, tokens_of(plain)).to(plain.scalar_type());
  const Tensor k = plain * share;
  // NOTE: a denominator of other rows than the numerator's leaves the operator its slower kernels.
  const Tensor below = scores_with(q, mean_token(k)) + eps;
  return over_all_tokens(turned(q, grid), turned(k, grid), v, {}) / below;
}

Tensor mala(const Tensor& q_in, const Tensor& k_in, const Tensor& v, at::IntArrayRef grid,
            double eps) {
  const double s = head_scale(q_in);
  const Tensor q = at::elu(q_in) + 1, k = at::elu(k_in) + 1;
  const Tensor z = scores_with(q, mean_token(k)) * s;
  const Tensor read = over_all_tokens(turned(q, grid), turned(k, grid), v, {.scale = s});
  return read * (1 + 1 / (z + eps)) - times_row(z, mean_token(v));
}

}  // namespace mhla::nn::functional
