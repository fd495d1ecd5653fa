#include "nn/modules/mhla.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>

#include <array>
#include <cmath>

#include "mhla/error.h"
#include "nn/functional/layers.h"
#include "nn/mixing.h"
#include "nn/tensor_view.h"

namespace mhla::nn {
namespace {

constexpr double kNormEps = 1e-5;     // torch's LayerNorm
constexpr double kOutNormEps = 1e-6;  // spec 1.9
constexpr double kRotaryBase = 10000.0;

MHLAConfig authors(Task task) {
  MHLAConfig c;
  c.init = "authors:linear";
  c.normalizer = Normalizer::shared_position;
  switch (task) {
    case Task::classification:
      c.inner_norm = true;
      c.qk_norm = QkNorm::full;
      c.lepe = 5;
      c.qkv_bias = false;
      return c;
    case Task::dit:
      c.inner_norm = true;
      c.lepe = 3;
      c.lepe_identity = true;
      c.dropout = 0.1;
      return c;
    case Task::video:
      c.normalizer = Normalizer::none;
      c.clamp = std::nullopt;
      c.rope = Rope::after_phi_num_only;
      c.qk_norm = QkNorm::full;
      c.qk_norm_eps = 1e-6;
      c.out_norm = OutNorm::head;
      return c;
    case Task::language:
      c.key_divisor = 2;
      c.init = "causal_uniform";
      c.mask = Mask::causal;
      c.normalizer = Normalizer::none;
      c.feature_map = FeatureMap::relu;
      c.scale_by_dk = true;
      c.clamp = std::pair{1e-5, 1.0};
      c.clamp_in_forward = true;
      c.rope = Rope::after_phi;
      c.out_norm = OutNorm::head;
      c.gate = true;
      c.qkv_bias = c.out_bias = false;
      return c;
  }
  fail("nn.MHLA", "task: unknown value ", static_cast<int>(task));
}

// Whether the operator would compute with f16, by its inputs or by autocast.
bool in_half(const at::Tensor& v) {
  const c10::DeviceType device = v.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return v.scalar_type() == at::kHalf;
  return at::autocast::get_autocast_dtype(device) == at::kHalf;
}

// NOTE: the authors' denominator mixes the scores of other queries. It may be almost nothing where
// a numerator is not (q and k of a flat background with disjoint ReLUs): results of 1e5 occur in
// the first steps of a small DeiT, f16 ends at 65504, and from there on all is NaN. So the operator
// runs in f32, and its result saturates, where it has no gradient.
at::Tensor saturating_half(const std::array<at::Tensor, 6>& in, const AttentionOptions& options) {
  constexpr double kLargest = 65504;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKeySet(
      at::autocast::get_autocast_dispatch_key_from_device_type(in[0].device().type())));
  const auto wide = [](const at::Tensor& t) { return t.defined() ? t.to(at::kFloat) : t; };
  const auto& [q, k, v, mixing, q_den, k_den] = in;
  return attention(wide(q), wide(k), wide(v), wide(mixing), options, wide(q_den), wide(k_den))
      .clamp(-kLargest, kLargest)
      .to(at::kHalf);
}

std::shared_ptr<Weights> weights(const at::Tensor& weight, const at::Tensor& bias = {}) {
  return std::make_shared<Weights>(weight, bias);
}

// The operator alone, rows normalised, weights clipped after each update.
MHLAConfig paper(Task task) {
  if (task == Task::classification || task == Task::dit) return {};
  MHLAConfig c = authors(task);
  c.clamp = std::pair{0.0, 1.0};
  c.clamp_in_forward = false;
  c.init = task == Task::video ? "locality" : "causal_locality";
  if (task == Task::video) {
    c.normalizer = Normalizer::exact;
    c.out_norm = OutNorm::none;
  }
  return c;
}

}  // namespace

Weights::Weights(const at::Tensor& initial_weight, const at::Tensor& initial_bias)
    : initial_weight_(initial_weight), initial_bias_(initial_bias) {
  reset();
}

void Weights::reset() {
  weight = register_parameter("weight", initial_weight_.clone());
  if (initial_bias_.defined()) bias = register_parameter("bias", initial_bias_.clone());
}

MHLAConfig MHLAConfig::preset(Preset preset, Task task) {
  return preset == Preset::paper ? paper(task) : authors(task);
}

MHLAImpl::MHLAImpl(const MHLAConfig& given) : config(given) {
  if (config.dim_k == 0) config.dim_k = config.dim / config.key_divisor;
  if (config.dim_v == 0) config.dim_v = config.dim;
  if (config.dim < 1 || config.heads < 1) {
    fail("nn.MHLA", "dim and heads: expected positive numbers, got ", config.dim, " and ",
         config.heads);
  }
  for (const std::int64_t width : {config.dim_k, config.dim_v}) {
    if (width % config.heads != 0) {
      fail("nn.MHLA", "width ", width, " is not a multiple of ", config.heads, " heads");
    }
  }
  if (config.lepe > 0 && !config.layout.is_grid()) fail("nn.MHLA", "lepe: needs a grid");
  if (config.lepe > 0 && config.lepe % 2 == 0) {
    fail("nn.MHLA", "lepe: expected an odd size, got ", config.lepe);
  }
  if (config.renormalize_rows && (!config.clamp || config.clamp_in_forward)) {
    fail("nn.MHLA", "renormalize_rows: needs a clamp after each update");
  }
  reset();
}

void MHLAImpl::reset() {
  const MHLAConfig& c = config;
  const std::int64_t dk = c.dim_k / c.heads, dv = c.dim_v / c.heads;
  if (c.inner_norm) {
    norm = register_module("norm", weights(at::ones({c.dim}), at::zeros({c.dim})));
  }
  if (c.separate_qkv) {
    q_proj = register_module("q_proj", make_linear(c.dim, c.dim_k, c.qkv_bias));
    k_proj = register_module("k_proj", make_linear(c.dim, c.dim_k, c.qkv_bias));
    v_proj = register_module("v_proj", make_linear(c.dim, c.dim_v, c.qkv_bias));
  } else {
    qkv = register_module("qkv", make_linear(c.dim, 2 * c.dim_k + c.dim_v, c.qkv_bias));
  }
  if (c.qk_norm != QkNorm::none) {
    const std::int64_t width = c.qk_norm == QkNorm::full ? c.dim_k : dk;
    q_norm = register_module("q_norm", weights(at::ones({width})));
    k_norm = register_module("k_norm", weights(at::ones({width})));
  }
  at::Tensor start = initial_mixing(c.init, c.layout.of(c.tokens));
  if (c.mixing_per_head) start = start.expand({c.heads, -1, -1}).clone();
  mixing = register_parameter("mixing", start, /*requires_grad=*/!c.freeze_mixing);
  if (c.lepe > 0) {
    std::vector<std::int64_t> shape{c.dim_v, 1};
    shape.insert(shape.end(), c.layout.grid.size(), c.lepe);
    lepe = register_module("lepe", weights(at::zeros(shape), at::zeros({c.dim_v})));
    const at::NoGradGuard no_gradient;
    if (c.lepe_identity) {
      at::Tensor centre = lepe->weight;
      while (centre.dim() > 1) centre = centre.select(1, centre.size(1) / 2);
      centre.fill_(1.0);
    } else {
      // PyTorch's convolution: uniform within 1 / sqrt(inputs of one output)
      const double bound = 1.0 / std::sqrt(static_cast<double>(lepe->weight[0].numel()));
      lepe->weight.uniform_(-bound, bound);
      lepe->bias.uniform_(-bound, bound);
    }
  }
  if (c.gate)
    gate = register_module("gate", make_linear(c.dim, c.dim_v, c.gate_bias.value_or(c.qkv_bias)));
  if (c.out_norm != OutNorm::none) {
    const std::int64_t full = c.out_norm == OutNorm::full ? c.dim_v : c.dim;
    const std::int64_t width = c.out_norm == OutNorm::head ? dv : full;
    out_norm = register_module("out_norm", weights(at::ones({width})));
  }
  out = register_module("out", make_linear(c.dim_v, c.dim, c.out_bias));
  dropout = register_module("dropout", torch::nn::Dropout(c.dropout));
}

std::vector<at::Tensor> MHLAImpl::project(const at::Tensor& x) const {
  if (config.separate_qkv) return {q_proj->forward(x), k_proj->forward(x), v_proj->forward(x)};
  return qkv->forward(x).split_with_sizes({config.dim_k, config.dim_k, config.dim_v}, -1);
}

at::Tensor MHLAImpl::forward(const at::Tensor& x) { return run(x, nullptr); }

at::Tensor MHLAImpl::step(const at::Tensor& x, StreamState& state) {
  const at::NoGradGuard no_gradient;
  return run(x, &state);
}

c10::intrusive_ptr<StreamState> MHLAImpl::init_state(std::int64_t batch) const {
  const MHLAConfig& c = config;
  if (c.mask == Mask::none || c.layout.is_grid() || c.layout.cut.block.empty()) {
    fail("nn.MHLA", "init_state: needs a causal mask and a sequence cut by block size");
  }
  const Problem problem{.batch = batch,
                        .heads = c.heads,
                        .dk = c.dim_k / c.heads,
                        .dv = c.dim_v / c.heads,
                        .layout = BlockLayout::sequence(c.layout.cut.block[0], c.layout.cut),
                        .mask = c.mask,
                        .normalizer = c.normalizer,
                        .feature_map = c.rope == Rope::none ? c.feature_map : FeatureMap::identity,
                        .scale = score_scale(),
                        .eps = c.eps,
                        .separate_denominator = plain_denominator(),
                        .mixing_per_head = c.mixing_per_head,
                        .dtype = dtype_of(out->weight.scalar_type()),
                        .device = device_of(out->weight.device())};
  return c10::make_intrusive<StreamState>(State(problem, matrix_of(mixing_in_range().detach())));
}

std::optional<functional::Norm> MHLAImpl::input_norm() const {
  if (!config.inner_norm) return std::nullopt;
  return functional::Norm{.weight = norm->weight, .bias = norm->bias, .eps = kNormEps};
}

at::Tensor MHLAImpl::run(const at::Tensor& input, StreamState* state) {
  const auto first = input_norm();
  return run_normed(first ? functional::normed(input, *first) : input, state);
}

at::Tensor MHLAImpl::run_normed(const at::Tensor& x, StreamState* state) {
  const MHLAConfig& c = config;
  const auto parts = project(x);
  const at::Tensor v = parts[2].unflatten(-1, {c.heads, -1});
  at::Tensor o = attend(parts[0], parts[1], v, state);
  const auto out_normed = [&](const at::Tensor& t) {
    return functional::normed(t, {.weight = out_norm->weight, .eps = kOutNormEps, .rms = true});
  };
  if (c.out_norm == OutNorm::head) o = out_normed(o);
  o = o.flatten(2);
  if (c.out_norm == OutNorm::full) o = out_normed(o);
  if (c.gate) o = o.mul(at::silu(gate->forward(x)));
  o = out->forward(o);
  if (c.out_norm == OutNorm::after) o = out_normed(o);
  return dropout->forward(o);
}

at::Tensor MHLAImpl::mixing_in_range() const {
  if (!config.clamp || !config.clamp_in_forward) return mixing;
  // Straight through, as the authors' clamp of `.data` is.
  return mixing.add(mixing.clamp(config.clamp->first, config.clamp->second).sub(mixing).detach());
}

double MHLAImpl::score_scale() const {
  if (!config.scale_by_dk) return config.scale;
  return std::pow(static_cast<double>(config.dim_k / config.heads), -0.5);
}

bool MHLAImpl::plain_denominator() const {
  return config.rope == Rope::after_phi_num_only && config.normalizer != Normalizer::none;
}

MHLAImpl::Rows MHLAImpl::prepared(const at::Tensor& x, const std::shared_ptr<Weights>& weights,
                                  StreamState* state) const {
  const MHLAConfig& c = config;
  const bool on_grid = c.layout.is_grid();
  if (c.qk_norm == QkNorm::full && c.qk_norm_eps && c.rope != Rope::none && on_grid) {
    auto [turned, plain] = functional::normed_and_turned(
        x, {.weight = weights->weight, .eps = *c.qk_norm_eps, .rms = true},
        {.heads = c.heads,
         .grid = c.layout.grid,
         .map = c.feature_map,
         .plain = plain_denominator()});
    return {turned, plain};
  }
  const auto normed = [&](const at::Tensor& t) {
    const double eps = c.qk_norm_eps.value_or(functional::unsaid_eps(t));
    return functional::normed(t, {.weight = weights->weight, .eps = eps, .rms = true});
  };
  at::Tensor rows = c.qk_norm == QkNorm::full ? normed(x) : x;
  rows = rows.unflatten(-1, {c.heads, -1});
  if (c.qk_norm == QkNorm::head) rows = normed(rows);
  if (c.rope == Rope::none) return {rows, {}};
  rows = apply_feature_map(c.feature_map, rows);
  std::optional<at::Tensor> start;
  if (state) start = at::full({}, state->get().tokens(), at::kLong);
  return {on_grid ? functional::rotary_axes(rows, c.layout.grid)
                  : functional::rotary(rows, kRotaryBase, start),
          plain_denominator() ? rows : at::Tensor()};
}

at::Tensor MHLAImpl::attend(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v,
                            StreamState* state) const {
  const MHLAConfig& c = config;
  const auto [q, q_den] = prepared(q_in, q_norm, state);
  const auto [k, k_den] = prepared(k_in, k_norm, state);
  if (!state) {
    const AttentionOptions options{
        .layout = c.layout,
        .mask = c.mask,
        .normalizer = c.normalizer,
        .feature_map = c.rope == Rope::none ? c.feature_map : FeatureMap::identity,
        .scale = score_scale(),
        .eps = c.eps};
    if (c.normalizer == Normalizer::shared_position && in_half(v)) {
      const at::Tensor o = saturating_half({q, k, v, mixing_in_range(), q_den, k_den}, options);
      if (c.lepe == 0) return o;
      return functional::grid_convolution(v, c.layout.grid, lepe->weight, lepe->bias, o);
    }
    if (c.lepe > 0) {
      return attention_and_local(q, k, v, mixing_in_range(), options, {lepe->weight, lepe->bias},
                                 q_den, k_den);
    }
    return attention(q, k, v, mixing_in_range(), options, q_den, k_den);
  }
  const auto optional = [](const at::Tensor& t) {
    return t.defined() ? std::optional(t) : std::nullopt;
  };
  return state->read(q, k, v, optional(q_den), optional(k_den));
}

void MHLAImpl::constrain() {
  if (!config.clamp || config.clamp_in_forward || config.freeze_mixing) return;
  constrain_mixing_(mixing, config.clamp->first, config.clamp->second, config.renormalize_rows);
}

}  // namespace mhla::nn
