#include "nn/attention.h"

#include <ATen/ops/elu.h>
#include <ATen/ops/relu.h>

#include <charconv>

#include "mhla/error.h"
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
  const bool low = mixing.scalar_type() == at::kBFloat16 || mixing.scalar_type() == at::kHalf;
  return ops::forward(q, k, v, low ? mixing.to(at::kFloat) : mixing, optional(q_den),
                      optional(k_den), sizes_of(options.layout), sizes_k, text_of(options));
}

at::Tensor attention_and_local(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const at::Tensor& mixing, const AttentionOptions& options,
                               const LocalWeights& local, const at::Tensor& q_den,
                               const at::Tensor& k_den) {
  if (options.layout_k) fail("attention", "local: q and k are not the same tokens");
  return ops::forward_and_local(q, k, v, mixing, optional(q_den), optional(k_den),
                                options.layout.grid, text_of(options), local.weight,
                                optional(local.bias));
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
