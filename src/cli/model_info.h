// `mhla info --model`: what a network is made of.
#pragma once

#include <string>
#include <vector>

namespace mhla::cli {

// Prints it. options: `attention=softmax`, `image_size=512`.
void model_info(const std::string& model, const std::vector<std::string>& options, bool json);

}  // namespace mhla::cli
