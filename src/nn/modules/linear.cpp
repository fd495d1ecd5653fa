// Linear attention of DeiT, DiT, Sana and Wan; the language form is gated (nn/modules/gated.h).
#include "nn/modules/linear.h"

#include "nn/functional/bidirectional.h"
#include "nn/functional/layers.h"
#include "nn/modules/gated.h"

namespace mhla::nn {
namespace {

using at::Tensor;
namespace f = functional;

constexpr double kSanaEps = 1e-8;

std::shared_ptr<Attention> make_linear_attention(std::string_view options) {
  const auto config = read_config<LinearConfig>("linear", options);
  const std::string& task = config.task;
  if (task == "classification" || task == "dit" || task == "text_to_image") {
    return std::make_shared<LinearAttention>(config);
  }
  if (task == "video") return std::make_shared<VideoLinearAttention>(config);
  if (task == "language") {
    return std::make_shared<CausalLinearAttention>(GatedConfig{.dim = config.dim,
                                                               .heads = config.heads,
                                                               .expand_k = config.expand_k,
                                                               .expand_v = config.expand_v,
                                                               .norm_eps = config.norm_eps,
                                                               .chunk = config.chunk});
  }
  fail("attention",
       "linear: task: expected classification, dit, text_to_image, video or language, got '", task,
       "'");
}

const AttentionName kName("linear", make_linear_attention);

}  // namespace

LinearAttention::LinearAttention(const Config& config)
    : heads_(config.heads), eps_(config.task == "classification" ? 1e-6 : kSanaEps) {
  check_heads("linear", config.dim, heads_);
  const std::int64_t dim = config.dim;
  if (config.task == "classification") {
    qkv_ = register_module("to_qkv", make_linear(dim, 3 * dim, false));
    q_norm_ = register_module("q_norm", make_rms_norm(dim));
    k_norm_ = register_module("k_norm", make_rms_norm(dim));
    const auto out = register_module("to_out", std::make_shared<torch::nn::Module>());
    out_ = out->register_module("0", make_linear(dim, dim, true));
  } else {
    qkv_ = register_module("qkv", make_linear(dim, 3 * dim, config.task == "dit"));
    out_ = register_module("proj", make_linear(dim, dim, true));
  }
}

Tensor LinearAttention::forward(const Tensor& x) {
  const std::vector<Tensor> qkv = qkv_->forward(x).chunk(3, -1);
  const Tensor q = split_heads(q_norm_ ? q_norm_->forward(qkv[0]) : qkv[0], heads_);
  const Tensor k = split_heads(k_norm_ ? k_norm_->forward(qkv[1]) : qkv[1], heads_);
  const Tensor v = split_heads(qkv[2], heads_);
  return out_->forward(f::linear_attention(q, k, v, "relu", eps_).flatten(2));
}

VideoLinearAttention::VideoLinearAttention(const Config& config)
    : heads_(config.heads),
      grid_(config.grid),
      q_(register_module("q", make_linear(config.dim, config.dim, true))),
      k_(register_module("k", make_linear(config.dim, config.dim, true))),
      v_(register_module("v", make_linear(config.dim, config.dim, true))),
      o_(register_module("o", make_linear(config.dim, config.dim, true))),
      norm_q_(register_module("norm_q", make_rms_norm(config.dim, 1e-6))),
      norm_k_(register_module("norm_k", make_rms_norm(config.dim, 1e-6))) {
  check_heads("linear", config.dim, heads_);
  check_grid("linear", grid_, 3);
}

Tensor VideoLinearAttention::forward(const Tensor& x) {
  const f::HeadTurn turn{.heads = heads_, .grid = grid_, .map = FeatureMap::relu, .plain = true};
  const auto q = f::normed_and_turned(q_->forward(x), norm_q_->norm(), turn);
  const auto k = f::normed_and_turned(k_->forward(x), norm_k_->norm(), turn);
  const Tensor v = split_heads(v_->forward(x), heads_);
  const Tensor o = f::linear_attention(q.turned, k.turned, v, "identity", kSanaEps, q.plain,
                                       k.plain);
  return o_->forward(o.flatten(2));
}

}  // namespace mhla::nn
