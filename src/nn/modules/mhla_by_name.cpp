// MHLA among the layers that have a name: `dim=384 heads=6 grid=14x14 blocks=4x4 preset=authors`.
#include <type_traits>

#include "mhla/core/text.h"
#include "nn/modules/attention.h"
#include "nn/modules/layers.h"
#include "nn/modules/mhla.h"

namespace mhla::nn {
namespace {

// An option that is a word of a list.
template <typename Enum>
void read_word(OptionReader& reader, const char* key, Enum& value,
               const std::vector<std::pair<const char*, std::type_identity_t<Enum>>>& words) {
  std::string given;
  reader(key, given);
  if (given.empty()) return;
  std::string known;
  for (const auto& [word, meaning] : words) {
    if (given == word) {
      value = meaning;
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string(word);
  }
  fail("attention", "mhla: ", key, ": expected one of ", known, ", got '", given, "'");
}

double number(const char* key, std::string_view text) {
  if (const auto value = parse_number<double>(text)) return *value;
  fail("attention", "mhla: ", key, ": expected a number, got '", text, "'");
}

// `eps=1e-6`; absent: as it was.
void read_optional(OptionReader& reader, const char* key, std::optional<double>& value) {
  std::string given;
  reader(key, given);
  if (!given.empty()) value = number(key, given);
}

// 0 leaves it out, also where the preset has one. Even sizes are refused by the layer.
void read_lepe(OptionReader& reader, std::int64_t& value) {
  std::int64_t given = -1;
  reader("lepe", given);
  if (given >= 0) value = given;
}

// `clamp=0,1` or `clamp=none`
void read_clamp(OptionReader& reader, std::optional<std::pair<double, double>>& value) {
  std::string given;
  reader("clamp", given);
  if (given.empty()) return;
  if (given == "none") {
    value = std::nullopt;
    return;
  }
  const auto ends = split(given, ',');
  if (ends.size() != 2)
    fail("attention", "mhla: clamp: expected LOW,HIGH or none, got '", given, "'");
  value = std::pair{number("clamp", ends[0]), number("clamp", ends[1])};
}

// `scale=0.125`, or `scale=dk` for dk^-1/2
void read_scale(OptionReader& reader, MHLAConfig& config) {
  std::string given;
  reader("scale", given);
  if (given.empty()) return;
  config.scale_by_dk = given == "dk";
  if (!config.scale_by_dk) config.scale = number("scale", given);
}

}  // namespace

MHLAConfig MHLAConfig::read(std::string_view options) {
  OptionReader reader("mhla", options);
  Preset preset = Preset::paper;
  Task task = Task::classification;
  read_word(reader, "preset", preset, {{"paper", Preset::paper}, {"authors", Preset::authors}});
  read_word(reader, "task", task,
            {{"classification", Task::classification},
             {"dit", Task::dit},
             {"video", Task::video},
             {"language", Task::language}});
  MHLAConfig config = MHLAConfig::preset(preset, task);
  reader("dim", config.dim);
  reader("heads", config.heads);
  reader("dim_k", config.dim_k);
  reader("dim_v", config.dim_v);
  reader("grid", config.layout.grid);
  reader("block", config.layout.cut.block);
  reader("blocks", config.layout.cut.blocks);
  reader("tokens", config.tokens);
  reader("init", config.init);
  read_word(reader, "mask", config.mask,
            {{"none", Mask::none}, {"causal", Mask::causal}, {"block_causal", Mask::block_causal}});
  read_word(reader, "normalizer", config.normalizer,
            {{"exact", Normalizer::exact},
             {"shared_position", Normalizer::shared_position},
             {"none", Normalizer::none}});
  read_word(reader, "feature_map", config.feature_map,
            {{"relu_eps", FeatureMap::relu_eps},
             {"relu", FeatureMap::relu},
             {"elu1", FeatureMap::elu1},
             {"identity", FeatureMap::identity}});
  read_word(reader, "rope", config.rope,
            {{"none", Rope::none},
             {"after_phi", Rope::after_phi},
             {"after_phi_num_only", Rope::after_phi_num_only}});
  read_word(reader, "qk_norm", config.qk_norm,
            {{"none", QkNorm::none}, {"full", QkNorm::full}, {"head", QkNorm::head}});
  read_word(reader, "out_norm", config.out_norm,
            {{"none", OutNorm::none},
             {"head", OutNorm::head},
             {"full", OutNorm::full},
             {"after", OutNorm::after}});
  read_word(reader, "gate", config.gate, {{"none", false}, {"silu", true}});
  read_scale(reader, config);
  read_optional(reader, "eps", config.eps);
  read_optional(reader, "qk_norm_eps", config.qk_norm_eps);
  read_clamp(reader, config.clamp);
  reader("clamp_in_forward", config.clamp_in_forward);
  reader("mixing_per_head", config.mixing_per_head);
  reader("freeze_mixing", config.freeze_mixing);
  reader("renormalize_rows", config.renormalize_rows);
  read_lepe(reader, config.lepe);
  reader("lepe_identity", config.lepe_identity);
  reader("inner_norm", config.inner_norm);
  reader("qkv_bias", config.qkv_bias);
  reader("out_bias", config.out_bias);
  read_word(reader, "gate_bias", config.gate_bias, {{"true", true}, {"false", false}});
  reader("separate_qkv", config.separate_qkv);
  reader("dropout", config.dropout);
  reader.finish();
  if (config.dim_k == 0 && task == Task::language) config.dim_k = config.dim / 2;
  return config;
}

namespace {

// Takes the parts of the layer for its own, so that parameters keep the names they have in MHLA.
class NamedMhla : public Attention {
 public:
  explicit NamedMhla(const MHLAConfig& config) : layer_(config) {
    for (const auto& child : layer_->named_children()) register_module(child.key(), child.value());
    register_parameter("mixing", layer_->mixing, /*requires_grad=*/!config.freeze_mixing);
  }
  at::Tensor forward(const at::Tensor& x) override { return layer_->forward(x); }
  void set_grid(const std::vector<std::int64_t>& grid) override {
    if (layer_->config.layout.is_grid()) layer_->config.layout.grid = grid;
  }

 private:
  MHLA layer_;
};

const AttentionName kName("mhla", [](std::string_view options) {
  return std::make_shared<NamedMhla>(MHLAConfig::read(options));
});

}  // namespace
}  // namespace mhla::nn
