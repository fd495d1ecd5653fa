// transformers' Llama and Mamba2.
#include "models/lm/lm.h"

namespace mhla::models {
namespace {

Naming llama() {
  const std::string ours = "model.layers.*.attn.", theirs = "model.layers.*.self_attn.";
  Naming naming{
      .package = "transformers", .network = "transformers' Llama", .sign = "model.embed_tokens."};
  naming.parts = {{"model.embeddings.", {"model.embed_tokens."}},
                  {"model.layers.*.attn_norm.", {"model.layers.*.input_layernorm."}},
                  {"model.layers.*.mlp_norm.", {"model.layers.*.post_attention_layernorm."}}};
  for (const char* each : {"q_proj.", "k_proj.", "v_proj.", "o_proj."}) {
    naming.parts.push_back({ours + each, {theirs + each}});
  }
  naming.same({"model.layers.*.mlp.gate_proj.", "model.layers.*.mlp.up_proj.",
               "model.layers.*.mlp.down_proj.", "model.norm.", "lm_head."});
  naming.computed = {".rotary_emb."};
  return naming;
}

Naming mamba2() {
  const std::string ours = "model.layers.*.attn.", theirs = "backbone.layers.*.mixer.";
  Naming naming{.package = "transformers", .network = "transformers' Mamba2", .sign = "backbone."};
  naming.parts = {{"model.embeddings.", {"backbone.embeddings."}},
                  {"model.layers.*.attn_norm.", {"backbone.layers.*.norm."}},
                  {"model.norm.", {"backbone.norm_f."}}};
  // dt_bias, A_log and D hang at the layer itself.
  for (const char* each : {"", "conv1d.", "in_proj.", "norm.", "out_proj."}) {
    naming.parts.push_back({ours + each, {theirs + each}});
  }
  return naming.same({"lm_head."});
}

}  // namespace

std::vector<Naming> Lm::namings() const {
  const LmConfig& c = config_;
  const bool is_mamba2 = c.attention == "mamba2";
  Naming naming = is_mamba2 ? mamba2() : llama();
  ConfigText config;
  config.add("model_type", is_mamba2 ? "mamba2" : "llama")
      .add("vocab_size", c.vocab)
      .add("hidden_size", c.dim)
      .add("num_hidden_layers", c.depth)
      .add("tie_word_embeddings", c.tied);
  if (is_mamba2) {
    const auto parameters = named_parameters();
    const auto size = [&](const char* name, std::int64_t axis) {
      return parameters["model.layers.0.attn." + std::string(name)].size(axis);
    };
    const std::int64_t heads = size("A_log", 0), inner = size("norm.weight", 0);
    config.add("num_heads", heads)
        .add("head_dim", inner / heads)
        .add("expand", inner / c.dim)
        .add("n_groups", std::int64_t{1})
        .add("state_size", (size("conv1d.weight", 0) - inner) / 2)
        .add("conv_kernel", size("conv1d.weight", 2))
        .add("layer_norm_epsilon", c.eps);
    if (c.eps != 1e-5) {
      naming.remarks.emplace_back(
          "transformers has one epsilon for all norms: eps=1e-5 here makes them equal");
    }
  } else {
    config.add("intermediate_size", c.intermediate)
        .add("num_attention_heads", c.heads)
        .add("num_key_value_heads", c.heads)
        .add("max_position_embeddings", c.context)
        .add("rms_norm_eps", c.eps)
        .add("rope_theta", 10000.0)
        .add("hidden_act", "silu");
    if (c.attention != "softmax") {
      naming.differs = "attention is " + c.attention + " here, softmax in transformers' Llama";
    }
  }
  // Several groups of keys cannot be told from a larger state.
  if (options.find("attention.groups") == std::string::npos) naming.config = config.text();
  return {naming};
}

StateDict Lm::adopt(StateDict tensors, std::vector<std::string>& notes) const {
  rename_prefix(tensors, "backbone.embedding.", "backbone.embeddings.");  // Mamba2's authors
  StateDict own = Model::adopt(std::move(tensors), notes);
  const auto head = own.find("lm_head.weight");
  if (config_.tied && head != own.end()) {
    const auto embedding = own.find("model.embeddings.weight");
    if (embedding == own.end() || !head->second.equal(embedding->second)) {
      notes.emplace_back("lm_head.weight differs from the embedding: give tied=false to keep it");
    } else {
      own.erase(head);
    }
  }
  return own;
}

}  // namespace mhla::models
