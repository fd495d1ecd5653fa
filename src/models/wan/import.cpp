// diffusers' Wan and the authors' Wan-MHLA for the networks here.
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

StateDict Wan::adopt(StateDict tensors, std::vector<std::string>& notes) const {
  Names names(std::move(tensors));
  if (names.any("condition_embedder.")) {
    notes.emplace_back("names of diffusers' Wan");
    names.prefix("condition_embedder.time_embedder.linear_1.", "time_embedding.0.")
        .prefix("condition_embedder.time_embedder.linear_2.", "time_embedding.2.")
        .prefix("condition_embedder.time_proj.", "time_projection.1.")
        .prefix("condition_embedder.text_embedder.linear_1.", "text_embedding.0.")
        .prefix("condition_embedder.text_embedder.linear_2.", "text_embedding.2.")
        .prefix("scale_shift_table", "head.modulation")
        .prefix("proj_out.", "head.head.")
        .replace(".scale_shift_table", ".modulation")
        .replace(".attn1.", ".self_attn.")
        .replace(".attn2.", ".cross_attn.")
        .replace(".to_q.", ".q.")
        .replace(".to_k.", ".k.")
        .replace(".to_v.", ".v.")
        .replace(".to_out.0.", ".o.")
        .replace(".norm2.", ".norm3.")
        .replace(".ffn.net.0.proj.", ".ffn.0.")
        .replace(".ffn.net.2.", ".ffn.2.");
  }
  return names.take();
}

}  // namespace mhla::models
