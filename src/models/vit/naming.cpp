// timm's DeiT.
#include "models/vit/vit.h"

namespace mhla::models {

std::vector<Naming> Vit::namings() const {
  const bool authors = named_parameters().contains("blocks.0.attn.to_qkv.weight");
  Naming naming{.package = "timm", .network = "timm's DeiT"};
  if (authors) naming.sign = ".attn.qkv.";
  naming.parts = {
      {authors ? "blocks.*.attn.to_qkv." : "blocks.*.attn.qkv.", {"blocks.*.attn.qkv."}},
      {authors ? "blocks.*.attn.to_out.0." : "blocks.*.attn.proj.", {"blocks.*.attn.proj."}},
  };
  naming.same({"cls_token", "pos_embed", "patch_embed.proj.", "blocks.*.norm1.", "blocks.*.norm2.",
               "blocks.*.mlp.fc1.", "blocks.*.mlp.fc2.", "norm.", "fc_norm.", "head."});
  if (config_.attention != "softmax") {
    naming.differs = "attention is " + config_.attention + " here, softmax in timm's DeiT";
  }
  if (rms_) naming.remarks.emplace_back("the norms are RMSNorm: timm needs norm_layer for that");
  if (!place_.class_token) {
    naming.remarks.emplace_back(
        "without a class token: timm needs class_token=False, global_pool='avg'");
  }
  return {naming};
}

StateDict Vit::adopt(StateDict tensors, std::vector<std::string>& notes) const {
  StateDict own = Model::adopt(std::move(tensors), notes);
  const auto parameters = named_parameters();
  if (parameters.contains("blocks.0.attn.to_qkv.weight") &&
      !parameters.contains("blocks.0.attn.to_qkv.bias") && any_contains(own, ".attn.to_qkv.bias")) {
    notes.emplace_back("the biases of q, k and v are left out: this network has none");
    drop_containing(own, ".attn.to_qkv.bias");
  }
  if (!place_.class_token && own.contains("cls_token")) {
    notes.emplace_back("the class token is left out, its norm becomes fc_norm");
    own.erase("cls_token");
    rename_prefix(own, "norm.", "fc_norm.");
    if (rms_) {
      for (const char* bias : {"fc_norm.bias", ".norm1.bias", ".norm2.bias"}) {
        drop_containing(own, bias);
      }
    }
  }
  if (any_contains(own, "head_dist.") || own.contains("dist_token")) {
    notes.emplace_back("the distillation token is left out");
    drop_containing(own, "head_dist.");
    drop_containing(own, "dist_token");
  }
  return own;
}

}  // namespace mhla::models
