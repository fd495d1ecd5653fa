// Loading with the report as a value.
#pragma once

#include "io/torch/weights.h"
#include "models/model.h"

namespace mhla::models {

bool is_mixing(const std::string& name);  // of a parameter

struct LoadFrom {
  std::string source;  // what the report calls it
  bool strict = true;
  std::vector<std::string> notes{};
};

io::LoadReport load_state(Model& model, StateDict tensors, const LoadFrom& from);

// What a file that save_weights wrote says about itself.
constexpr const char* kModelKey = "mhla.model";
constexpr const char* kOptionsKey = "mhla.options";
io::Metadata metadata_of(const Model& model);

}  // namespace mhla::models
