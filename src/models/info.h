// A network described for people and for programs: `mhla info --model`.
#pragma once

#include <string>

#include "models/model.h"

namespace mhla::models {

// Layers, parameters, arithmetic and memory by part, and the share of the mixing matrices.
std::string describe(const Model& model);
std::string describe_json(const Model& model);

}  // namespace mhla::models

// For programs that load libmhla_torch when they need it. Returns 0 and the description, or 1 and
// the message of the error; free the text with free().
extern "C" int mhla_model_info(const char* name, const char* options, int json, char** text);
