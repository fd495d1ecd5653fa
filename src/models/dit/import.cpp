// Facebook's and diffusers' DiT for the networks here.
#include "models/dit/dit.h"

namespace mhla::models {

StateDict Dit::adopt(StateDict tensors, std::vector<std::string>& notes) const {
  Names names(std::move(tensors));
  if (names.any("transformer_blocks.")) {
    notes.emplace_back(
        "diffusers' names; the embedders of its first block are taken, all blocks hold the same");
    for (std::int64_t i = 1; i < config_.depth; ++i) {
      names.drop_prefix("transformer_blocks." + std::to_string(i) + ".norm1.emb.");
    }
    names.join({".attn1.to_q.", ".attn1.to_k.", ".attn1.to_v."}, ".attn.qkv.")
        .replace(".attn1.to_out.0.", ".attn.proj.")
        .prefix("transformer_blocks.0.norm1.emb.timestep_embedder.linear_1.", "t_embedder.mlp.0.")
        .prefix("transformer_blocks.0.norm1.emb.timestep_embedder.linear_2.", "t_embedder.mlp.2.")
        .prefix("transformer_blocks.0.norm1.emb.class_embedder.", "y_embedder.")
        .replace(".norm1.linear.", ".adaLN_modulation.1.")
        .replace(".ff.net.0.proj.", ".mlp.fc1.")
        .replace(".ff.net.2.", ".mlp.fc2.")
        .prefix("transformer_blocks.", "blocks.")
        .prefix("pos_embed.proj.", "x_embedder.proj.")
        .drop("pos_embed.pos_embed")
        .prefix("proj_out_1.", "final_layer.adaLN_modulation.1.")
        .prefix("proj_out_2.", "final_layer.linear.");
  }
  const auto own = named_parameters();
  if (names.any(".attn.qkv.") && own.contains("blocks.0.attn.to_qkv.weight")) {
    notes.emplace_back("stock projections: attn.qkv is attn.to_qkv, attn.proj is attn.to_out.0");
    names.replace(".attn.qkv.", ".attn.to_qkv.").replace(".attn.proj.", ".attn.to_out.0.");
    if (!own.contains("blocks.0.attn.to_qkv.bias")) names.drop(".attn.to_qkv.bias");
  }
  return names.take();
}

}  // namespace mhla::models
