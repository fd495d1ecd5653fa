// Options of a network, read into the fields of its config.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "mhla/error.h"
#include "models/model.h"
#include "nn/modules/attention.h"

namespace mhla::models {

template <typename Config>
Config read_config(const Request& request) {
  Config config;
  nn::OptionReader reader(request.name, request.options, "models");
  config.fields(reader);
  reader.finish();
  return config;
}

// "auto" leaves `otherwise`.
inline bool choice(const char* key, const std::string& word, bool otherwise) {
  if (word == "auto") return otherwise;
  if (word == "true" || word == "false") return word == "true";
  fail("models", key, ": expected auto, true or false, got '", word, "'");
}

// Height and width; one number means a square.
inline std::vector<std::int64_t> picture_size(const char* key, std::vector<std::int64_t> given) {
  if (given.size() == 1) given.push_back(given[0]);
  if (given.size() == 2 && given[0] > 0 && given[1] > 0) return given;
  fail("models", key, ": expected SIZE or HEIGHTxWIDTH");
}

// Submodules 0, 1, 2 ... under one name.
template <typename Layer>
class Layers : public torch::nn::Module {
 public:
  void push_back(std::shared_ptr<Layer> layer) {
    register_module(std::to_string(list_.size()), layer);
    list_.push_back(std::move(layer));
  }
  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }
  std::size_t size() const { return list_.size(); }
  Layer& operator[](std::size_t i) const { return *list_[i]; }

 private:
  std::vector<std::shared_ptr<Layer>> list_;
};

}  // namespace mhla::models
