// transformers' Llama and flash-linear-attention's Mamba2 for the networks here.
#include "models/lm/lm.h"

namespace mhla::models {

StateDict Lm::adopt(StateDict tensors, std::vector<std::string>& notes) const {
  Names names(std::move(tensors));
  if (names.has("model.embed_tokens.weight")) {
    notes.emplace_back("names of transformers' Llama");
    names.prefix("model.embed_tokens.", "model.embeddings.")
        .replace(".self_attn.", ".attn.")
        .replace(".input_layernorm.", ".attn_norm.")
        .replace(".post_attention_layernorm.", ".mlp_norm.")
        .drop(".rotary_emb.");
  }
  if (names.any("backbone.")) {
    notes.emplace_back("names of Mamba2");
    names.replace("backbone.norm_f.", "model.norm.")
        .prefix("backbone.", "model.")
        .replace(".mixer.", ".attn.");
    for (std::int64_t i = 0; i < config_.depth; ++i) {
      const std::string layer = "model.layers." + std::to_string(i);
      names.prefix(layer + ".norm.", layer + ".attn_norm.");
    }
  }
  if (config_.tied && names.has("lm_head.weight")) {
    const at::Tensor& head = names.at("lm_head.weight");
    if (!names.has("model.embeddings.weight") || !head.equal(names.at("model.embeddings.weight"))) {
      notes.emplace_back("lm_head.weight differs from the embedding: give tied=false to keep it");
    } else {
      names.drop_prefix("lm_head.");
    }
  }
  return names.take();
}

}  // namespace mhla::models
