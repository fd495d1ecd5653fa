// timm's DeiT for the networks here.
#include "models/vit/vit.h"

namespace mhla::models {

StateDict Vit::adopt(StateDict tensors, std::vector<std::string>& notes) const {
  Names names(std::move(tensors));
  const auto own = named_parameters();
  if (names.any(".attn.qkv.") && own.contains("blocks.0.attn.to_qkv.weight")) {
    notes.emplace_back("timm's projections: attn.qkv is attn.to_qkv, attn.proj is attn.to_out.0");
    names.replace(".attn.qkv.", ".attn.to_qkv.").replace(".attn.proj.", ".attn.to_out.0.");
    if (!own.contains("blocks.0.attn.to_qkv.bias") && names.any(".attn.to_qkv.bias")) {
      notes.emplace_back("the biases of q, k and v are left out: this network has none");
      names.drop(".attn.to_qkv.bias");
    }
  }
  if (!place_.class_token && names.has("cls_token")) {
    notes.emplace_back("the class token is left out, its norm becomes fc_norm");
    names.drop("cls_token").prefix("norm.", "fc_norm.");
    if (rms_) names.drop("fc_norm.bias").drop(".norm1.bias").drop(".norm2.bias");
  }
  if (names.any("head_dist.") || names.has("dist_token")) {
    notes.emplace_back("the distillation token is left out");
    names.drop("head_dist.").drop("dist_token");
  }
  return names.take();
}

}  // namespace mhla::models
