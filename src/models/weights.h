// Weights of a network from files and tensors of this project and of others, and to files.
#pragma once

#include <string>
#include <vector>

#include "models/model.h"

namespace mhla::models {

// Names and layouts that Model::adopt knows are converted, other sizes fitted (Model::fit); a stock
// checkpoint may lack what MHLA adds to its layers, which then keeps its start. strict: anything
// else that is missing or left over is an error. Returns the report's text.
std::string load_weights(Model& model, const std::string& path, bool strict = true);
std::string load_weights(Model& model, const StateDict& tensors, bool strict = true);

// safetensors, under upstream's names; returns the files written.
std::vector<std::string> save_weights(const Model& model, const std::string& path);

}  // namespace mhla::models
