// Weights of a network from files and tensors of this project and of others, and to files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"

namespace mhla::models {

// Names and layouts that Model::adopt knows are converted, other sizes fitted (Model::fit); a stock
// checkpoint may lack what MHLA adds to its layers, which then keeps its start. strict: anything
// else that is missing or left over is an error. Returns the report's text.
std::string load_weights(Model& model, const std::string& path, bool strict = true);
std::string load_weights(Model& model, const StateDict& tensors, bool strict = true);

struct SaveWeights {
  std::string package = "upstream";  // whose names: see Model::packages()
  bool partial = false;              // see Model::export_as
  std::string dtype{};               // f32, bf16, f16, f64; empty: as they are
  std::uint64_t max_file_bytes = 0;  // 0: one file
};

// safetensors; returns the files written. They say which network they are: see convert.h.
std::vector<std::string> save_weights(const Model& model, const std::string& path,
                                      const SaveWeights& how = {});

}  // namespace mhla::models
