// Stands in for weights.cpp where the readers of files were not built.
#include "mhla/error.h"
#include "models/weights.h"

namespace mhla::models {
namespace {

[[noreturn]] void refuse() {
  fail(ErrorCode::unsupported, "models",
       "this build reads and writes no checkpoints: it was made without nlohmann-json");
}

}  // namespace

std::string load_weights(Model&, const std::string&, bool) { refuse(); }
std::string load_weights(Model&, const StateDict&, bool) { refuse(); }
std::vector<std::string> save_weights(const Model&, const std::string&) { refuse(); }

}  // namespace mhla::models
