// diffusers' Sana.
#include "models/sana/sana.h"

namespace mhla::models {

std::vector<Naming> Sana::namings() const {
  const std::string block = "transformer_blocks.*.";
  Naming naming{
      .package = "diffusers", .network = "diffusers' Sana", .sign = "transformer_blocks."};
  naming.parts = {
      {"blocks.*.attn.qkv.", {block + "attn1.to_q.", block + "attn1.to_k.", block + "attn1.to_v."}},
      {"blocks.*.attn.proj.", {block + "attn1.to_out.0."}},
      {"blocks.*.cross_attn.q_linear.", {block + "attn2.to_q."}},
      {"blocks.*.cross_attn.kv_linear.", {block + "attn2.to_k.", block + "attn2.to_v."}},
      {"blocks.*.cross_attn.proj.", {block + "attn2.to_out.0."}},
      {"blocks.*.mlp.inverted_conv.conv.", {block + "ff.conv_inverted."}},
      {"blocks.*.mlp.depth_conv.conv.", {block + "ff.conv_depth."}},
      {"blocks.*.mlp.point_conv.conv.", {block + "ff.conv_point."}},
      {"blocks.*.scale_shift_table", {block + "scale_shift_table"}},
      {"x_embedder.proj.", {"patch_embed.proj."}},
      {"t_embedder.mlp.0.", {"time_embed.emb.timestep_embedder.linear_1."}},
      {"t_embedder.mlp.2.", {"time_embed.emb.timestep_embedder.linear_2."}},
      {"t_block.1.", {"time_embed.linear."}},
      {"y_embedder.y_proj.fc1.", {"caption_projection.linear_1."}},
      {"y_embedder.y_proj.fc2.", {"caption_projection.linear_2."}},
      {"attention_y_norm.", {"caption_norm."}},
      {"final_layer.scale_shift_table", {"scale_shift_table"}},
      {"final_layer.linear.", {"proj_out."}},
  };
  naming.computed = {"patch_embed.pos_embed"};
  if (config_.attention != "linear") {
    naming.differs = "attention is " + config_.attention + " here, linear in diffusers' Sana";
  }
  naming.config = ConfigText()
                      .add("_class_name", "SanaTransformer2DModel")
                      .add("in_channels", config_.channels)
                      .add("out_channels", config_.channels)
                      .add("num_attention_heads", config_.heads)
                      .add("attention_head_dim", config_.dim / config_.heads)
                      .add("num_layers", config_.depth)
                      .add("num_cross_attention_heads", config_.cross_heads)
                      .add("cross_attention_head_dim", config_.dim / config_.cross_heads)
                      .add("cross_attention_dim", config_.dim)
                      .add("caption_channels", config_.text_dim)
                      .add("mlp_ratio", config_.mlp_ratio)
                      .add("sample_size", place_.grid[0])
                      .add("patch_size", std::int64_t{1})
                      .text();
  return {naming};
}

StateDict Sana::adopt(StateDict tensors, std::vector<std::string>& notes) const {
  StateDict own = Model::adopt(std::move(tensors), notes);
  own.erase("pos_embed");  // a buffer of zeros: the network has no positions
  return own;
}

}  // namespace mhla::models
