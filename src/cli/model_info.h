// `mhla info --model`: what a network is made of.
#pragma once

#include <string>
#include <vector>

namespace mhla::cli {

// Prints it. options: `attention=softmax`, `image_size=512`. Networks live in libmhla_torch, which
// is loaded only here, so that the program starts fast and runs without LibTorch.
void model_info(const std::string& model, const std::vector<std::string>& options, bool json);

}  // namespace mhla::cli
