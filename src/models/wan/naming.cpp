// diffusers' Wan and the authors' Wan-MHLA.
#include "models/wan/wan.h"

namespace mhla::models {
namespace {

// Of mixing matrices that were published: the number of blocks says how they were cut.
std::string blocks_of(std::int64_t count) {
  if (count == 150) return "3x5x10";
  if (count == 105) return "7x3x5";
  fail("models", "a mixing matrix of ", count, " blocks: 150 (3x5x10) and 105 (7x3x5) are known, ",
       "give blocks= for others");
}

std::string layer_name(std::int64_t i) { return "blocks." + std::to_string(i) + ".self_attn."; }

// Softmax in layers 0, n, 2n ... and MHLA in the others: n, 0 where all have MHLA.
std::int64_t softmax_every(const std::vector<bool>& mixed) {
  if (mixed[0]) {
    for (const bool each : mixed) {
      if (!each) fail("models", "a hybrid whose first layer is not softmax is not supported");
    }
    return 0;
  }
  std::size_t n = 1;
  while (n < mixed.size() && mixed[n]) ++n;
  for (std::size_t i = 0; i < mixed.size(); ++i) {
    if (mixed[i] != (i % n != 0)) fail("models", "softmax is not in every ", n, "th layer");
  }
  return static_cast<std::int64_t>(n);
}

}  // namespace

std::string wan_options(const StateDict& tensors) {
  std::vector<bool> mixed;
  std::int64_t first = -1;
  for (std::int64_t i = 0; tensors.contains(layer_name(i) + "q.weight"); ++i) {
    mixed.push_back(tensors.contains(layer_name(i) + "block_attn.conv.weight"));
    if (mixed.back() && first < 0) first = i;
  }
  if (first < 0) return "attention=softmax";
  const std::string layer = layer_name(first);
  const auto has = [&](const char* name) { return tensors.contains(layer + name); };
  const auto size = [&](const char* name) { return tensors.at(layer + name).size(0); };
  std::string out_norm = "none";
  if (has("g_norm.weight")) {
    out_norm = size("g_norm.weight") == size("q.weight") ? "full" : "head";
  } else if (has("out_rmsnorm.weight")) {
    out_norm = "after";
  }
  std::string text = "attention=mhla blocks=" + blocks_of(size("block_attn.conv.weight")) +
                     " softmax_every=" + std::to_string(softmax_every(mixed)) +
                     " attention.out_norm=" + out_norm;
  if (has("g.weight")) text += " attention.gate=silu";
  if (has("lepe.weight")) text += " attention.lepe=3";
  return text;
}

std::vector<Naming> Wan::namings() const {
  Naming naming{.package = "diffusers", .network = "diffusers' Wan", .sign = "condition_embedder."};
  naming.parts = {
      {"time_embedding.0.", {"condition_embedder.time_embedder.linear_1."}},
      {"time_embedding.2.", {"condition_embedder.time_embedder.linear_2."}},
      {"time_projection.1.", {"condition_embedder.time_proj."}},
      {"text_embedding.0.", {"condition_embedder.text_embedder.linear_1."}},
      {"text_embedding.2.", {"condition_embedder.text_embedder.linear_2."}},
      {"head.modulation", {"scale_shift_table"}},
      {"head.head.", {"proj_out."}},
      {"blocks.*.modulation", {"blocks.*.scale_shift_table"}},
      {"blocks.*.norm3.", {"blocks.*.norm2."}},
      {"blocks.*.ffn.0.", {"blocks.*.ffn.net.0.proj."}},
      {"blocks.*.ffn.2.", {"blocks.*.ffn.net.2."}},
  };
  for (const auto& [ours, theirs] : {std::pair{"blocks.*.self_attn.", "blocks.*.attn1."},
                                     std::pair{"blocks.*.cross_attn.", "blocks.*.attn2."}}) {
    for (const auto& [part, name] :
         {std::pair{"q.", "to_q."}, std::pair{"k.", "to_k."}, std::pair{"v.", "to_v."},
          std::pair{"o.", "to_out.0."}, std::pair{"norm_q.", "norm_q."},
          std::pair{"norm_k.", "norm_k."}}) {
      naming.parts.push_back({std::string(ours) + part, {std::string(theirs) + name}});
    }
  }
  naming.same({"patch_embedding."});
  if (config_.attention != "softmax") {
    naming.differs = "attention is " + config_.attention + " here, softmax in diffusers' Wan";
  }
  naming.config = ConfigText()
                      .add("_class_name", "WanTransformer3DModel")
                      .add("patch_size", std::vector<std::int64_t>{1, 2, 2})
                      .add("num_attention_heads", config_.heads)
                      .add("attention_head_dim", config_.dim / config_.heads)
                      .add("in_channels", config_.channels)
                      .add("out_channels", config_.channels)
                      .add("text_dim", config_.text_dim)
                      .add("freq_dim", time0_->weight.size(1))
                      .add("ffn_dim", config_.ffn)
                      .add("num_layers", config_.depth)
                      .add("cross_attn_norm", true)
                      .add("qk_norm", "rms_norm_across_heads")
                      .add("eps", 1e-6)
                      .text();
  return {naming};
}

}  // namespace mhla::models
