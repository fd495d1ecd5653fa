// Attention layers by name: what every one of them offers, and how a text describes one.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nn/functional/norms.h"

namespace mhla::nn {

// What a causal layer remembers between calls; its tensors are the layer's own affair.
using AttentionState = std::vector<at::Tensor>;

class Attention : public torch::nn::Module {
 public:
  // x [B, N, C] -> [B, N, C], tokens in natural order
  virtual at::Tensor forward(const at::Tensor& x) = 0;

  // The norm that the layer begins with, and the layer on tokens that went through it: whoever
  // computes these tokens can do both in one pass.
  virtual std::optional<functional::Norm> input_norm() const { return std::nullopt; }
  virtual at::Tensor forward_normed(const at::Tensor& x) { return forward(x); }

  // Causal layers only: x [B, N, C] continues the sequence of the state (empty: begins one).
  virtual std::pair<at::Tensor, AttentionState> step(const at::Tensor& x,
                                                     const AttentionState& state);

  // Another resolution: the tokens of the following calls lie on this grid. Layers without one
  // ignore it.
  virtual void set_grid(const std::vector<std::int64_t>& grid);
};

// Fills the fields of a config from `dim=384 heads=6 grid=14x14`; of a key given twice the last
// counts. Unknown keys and values that do not parse are errors; a typo is answered with the nearest
// key.
class OptionReader {
 public:
  // where: what messages begin with; a string literal
  OptionReader(std::string layer, std::string_view text, const char* where = "attention");
  void operator()(const char* key, std::int64_t& value);
  void operator()(const char* key, double& value);
  void operator()(const char* key, bool& value);
  void operator()(const char* key, std::string& value);
  void operator()(const char* key, std::vector<std::int64_t>& value);
  void finish() const;

 private:
  const std::string* take(const char* key);

  std::string layer_;
  const char* where_;
  std::map<std::string, std::string> given_;
  std::vector<std::string> known_;
};

template <typename Config>
Config read_config(const std::string& layer, std::string_view text) {
  Config config;
  OptionReader reader(layer, text);
  config.fields(reader);
  reader.finish();
  return config;
}

using AttentionFactory = std::function<std::shared_ptr<Attention>(std::string_view options)>;

// At namespace scope of the layer's file: `const AttentionName kName("rala", factory);`
struct AttentionName {
  AttentionName(std::string name, AttentionFactory factory);
};

// A factory for layers built from their own Config.
template <typename Layer>
AttentionFactory factory_of(const std::string& name) {
  return [name](std::string_view options) {
    return std::make_shared<Layer>(read_config<typename Layer::Config>(name, options));
  };
}

std::vector<std::string> attention_names();
std::shared_ptr<Attention> make_attention(const std::string& name, std::string_view options);

}  // namespace mhla::nn
