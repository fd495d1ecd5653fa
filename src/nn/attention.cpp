#include "nn/attention.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/relu.h>

#include <charconv>

#include "mhla/error.h"
#include "nn/functional/layers.h"
#include "nn/operators.h"

namespace mhla::nn {
namespace {

std::string words(const Cut& cut, const char* suffix) {
  const bool by_block = !cut.block.empty();
  std::string text = std::string(by_block ? "block" : "blocks") + suffix + "=";
  const auto& axes = by_block ? cut.block : cut.blocks;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (i > 0) text += 'x';
    text += std::to_string(axes[i]);
  }
  return text;
}

std::string number(double value) {
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string(buffer, result.ptr);
}

std::string text_of(const AttentionOptions& o) {
  std::string text = words(o.layout.cut, "") + " mask=" + name(o.mask) +
                     " normalizer=" + name(o.normalizer) + " feature_map=" + name(o.feature_map);
  if (o.scale != 1.0) text += " scale=" + number(o.scale);
  if (o.eps) text += " eps=" + number(*o.eps);
  if (o.layout_k) text.append(" ").append(words(o.layout_k->cut, "_k"));
  return text;
}

std::vector<c10::SymInt> sizes_of(const Layout& layout) {
  return {layout.grid.begin(), layout.grid.end()};
}

ops::OptionalTensor optional(const at::Tensor& tensor) {
  return tensor.defined() ? ops::OptionalTensor(tensor) : std::nullopt;
}

// The weights of the mixing matrix are read as f32.
at::Tensor readable(const at::Tensor& mixing) {
  const bool low = mixing.scalar_type() == at::kBFloat16 || mixing.scalar_type() == at::kHalf;
  return low ? mixing.to(at::kFloat) : mixing;
}

// Whether kernels may be handed the memory of this tensor, with nobody else to be told: it is not a
// tracer's, and no gradient is recorded through it.
bool is_plain(const at::Tensor& x) {
  using c10::DispatchKey;
  if (!x.defined()) return true;
  const c10::DispatchKeySet keys = x.key_set();
  const bool traced = keys.has(DispatchKey::Python) || keys.has(DispatchKey::FuncTorchBatched) ||
                      keys.has(DispatchKey::FuncTorchGradWrapper) ||
                      keys.has(DispatchKey::Functionalize);
  const bool recorded = at::GradMode::is_enabled() && x.requires_grad();
  return !traced && !recorded && (x.is_cpu() || x.is_cuda()) && !x._fw_grad(/*level=*/0).defined();
}

}  // namespace

BlockLayout Layout::of(std::int64_t tokens) const {
  return is_grid() ? BlockLayout::grid(grid, cut) : BlockLayout::sequence(tokens, cut);
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& mixing, const AttentionOptions& options,
                     const at::Tensor& q_den, const at::Tensor& k_den) {
  std::vector<c10::SymInt> sizes_k;
  if (options.layout_k) {
    sizes_k = sizes_of(*options.layout_k);
    if (sizes_k.empty()) sizes_k.push_back(k.sym_size(1));
  }
  return ops::forward(q, k, v, readable(mixing), optional(q_den), optional(k_den),
                      sizes_of(options.layout), sizes_k, text_of(options));
}

at::Tensor attention_and_local(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const at::Tensor& mixing, const AttentionOptions& options,
                               const LocalWeights& local, const at::Tensor& q_den,
                               const at::Tensor& k_den) {
  bool plain = !options.layout_k && !at::autocast::is_autocast_enabled(q.device().type());
  for (const at::Tensor* x : {&q, &k, &v, &mixing, &local.weight, &local.bias, &q_den, &k_den}) {
    plain = plain && is_plain(*x);
  }
  if (plain) {
    const auto done = ops::forward_with_local(
        {q, k, v, readable(mixing), q_den, k_den},
        {.sizes = options.layout.grid, .sizes_k = {}, .options = text_of(options)}, local.weight,
        local.bias);
    if (done) return *done;
  }
  return functional::grid_convolution(v, options.layout.grid, local.weight, optional(local.bias),
                                      attention(q, k, v, mixing, options, q_den, k_den));
}

at::Tensor apply_feature_map(FeatureMap map, const at::Tensor& x) {
  switch (map) {
    case FeatureMap::relu_eps: return at::relu(x).add(kReluEps);
    case FeatureMap::relu: return at::relu(x);
    case FeatureMap::elu1: return at::elu(x).add(1);
    case FeatureMap::identity: return x;
  }
  fail("attention", "feature_map: unknown value ", static_cast<int>(map));
}

}  // namespace mhla::nn
