// Facebook's and diffusers' DiT.
#include "models/dit/dit.h"
#include "models/layers/position.h"

namespace mhla::models {
namespace {

struct Projections {
  std::string qkv, out;
};

// The authors' layers call the stock projections by other names.
Projections projections_of(const Model& model) {
  const bool authors = model.named_parameters().contains("blocks.0.attn.to_qkv.weight");
  return authors ? Projections{"blocks.*.attn.to_qkv.", "blocks.*.attn.to_out.0."}
                 : Projections{"blocks.*.attn.qkv.", "blocks.*.attn.proj."};
}

}  // namespace

Naming Dit::facebook() const {
  const Projections own = projections_of(*this);
  Naming naming{.package = "facebook", .network = "Facebook's DiT"};
  if (own.qkv != "blocks.*.attn.qkv.") naming.sign = ".attn.qkv.";
  naming.parts = {{own.qkv, {"blocks.*.attn.qkv."}}, {own.out, {"blocks.*.attn.proj."}}};
  naming.same({"pos_embed", "x_embedder.proj.", "t_embedder.mlp.0.", "t_embedder.mlp.2.",
               "y_embedder.embedding_table.", "blocks.*.mlp.fc1.", "blocks.*.mlp.fc2.",
               "blocks.*.adaLN_modulation.1.", "final_layer.linear.",
               "final_layer.adaLN_modulation.1."});
  return naming;
}

Naming Dit::diffusers() const {
  const Projections own = projections_of(*this);
  const std::string block = "transformer_blocks.*.", embedders = block + "norm1.emb.";
  Naming naming{.package = "diffusers",
                .network = "diffusers' DiT",
                .sign = "transformer_blocks.",
                .layers = config_.depth};
  naming.parts = {
      {own.qkv, {block + "attn1.to_q.", block + "attn1.to_k.", block + "attn1.to_v."}},
      {own.out, {block + "attn1.to_out.0."}},
      {"t_embedder.mlp.0.", {embedders + "timestep_embedder.linear_1."}},
      {"t_embedder.mlp.2.", {embedders + "timestep_embedder.linear_2."}},
      {"y_embedder.embedding_table.", {embedders + "class_embedder.embedding_table."}},
      {"blocks.*.adaLN_modulation.1.", {block + "norm1.linear."}},
      {"blocks.*.mlp.fc1.", {block + "ff.net.0.proj."}},
      {"blocks.*.mlp.fc2.", {block + "ff.net.2."}},
      {"x_embedder.proj.", {"pos_embed.proj."}},
      {"final_layer.adaLN_modulation.1.", {"proj_out_1."}},
      {"final_layer.linear.", {"proj_out_2."}},
  };
  naming.computed = {"pos_embed.pos_embed"};
  // Anything that 16-bit types round away is no difference.
  const bool computed = pos_embed_.is_meta() ||
                        (pos_embed_.detach().cpu() - sincos_positions(config_.dim, place_.grid))
                                .abs()
                                .max()
                                .item<double>() < 0x1p-8;
  if (!computed) naming.differs = "positions are learned here, computed in diffusers' DiT";
  if (config_.frequency_shift == 0) {
    naming.remarks.emplace_back(
        "diffusers computes the timestep's frequencies as 10000^(-k/127), this network as "
        "10000^(-k/128): frequency_shift=1 is the former");
  }
  if (config_.image_size[0] != config_.image_size[1]) {
    naming.remarks.emplace_back("diffusers' DiT knows square pictures only: no config.json");
    return naming;
  }
  naming.config = ConfigText()
                      .add("_class_name", "DiTTransformer2DModel")
                      .add("num_attention_heads", config_.heads)
                      .add("attention_head_dim", config_.dim / config_.heads)
                      .add("in_channels", config_.channels)
                      .add("out_channels", out_channels())
                      .add("num_layers", config_.depth)
                      .add("sample_size", place_.grid[0] * config_.patch)
                      .add("patch_size", config_.patch)
                      .add("num_embeds_ada_norm", config_.classes)
                      .add("attention_bias", true)
                      .add("activation_fn", "gelu-approximate")
                      .add("norm_type", "ada_norm_zero")
                      .add("norm_elementwise_affine", false)
                      .add("norm_eps", 1e-6)
                      .text();
  return naming;
}

std::vector<Naming> Dit::namings() const {
  std::vector<Naming> all{diffusers(), facebook()};
  if (config_.attention == "softmax") return all;
  for (Naming& naming : all) {
    naming.differs = "attention is " + config_.attention + " here, softmax in " + naming.network;
  }
  return all;
}

StateDict Dit::adopt(StateDict tensors, std::vector<std::string>& notes) const {
  StateDict own = Model::adopt(std::move(tensors), notes);
  const auto parameters = named_parameters();
  if (parameters.contains("blocks.0.attn.to_qkv.weight") &&
      !parameters.contains("blocks.0.attn.to_qkv.bias") && any_contains(own, ".attn.to_qkv.bias")) {
    notes.emplace_back("the biases of q, k and v are left out: this network has none");
    drop_containing(own, ".attn.to_qkv.bias");
  }
  return own;
}

}  // namespace mhla::models
