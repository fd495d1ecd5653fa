// Stands in for the other files here where the readers of files were not built.
#include <cstring>

#include "mhla/error.h"
#include "models/convert.h"
#include "models/weights.h"

namespace {

constexpr const char* kRefusal =
    "this build reads and writes no checkpoints: it was made without nlohmann-json";

}  // namespace

namespace mhla::models {
namespace {

[[noreturn]] void refuse() { fail(ErrorCode::unsupported, "models", kRefusal); }

}  // namespace

std::string load_weights(Model&, const std::string&, bool) { refuse(); }
std::string load_weights(Model&, const StateDict&, bool) { refuse(); }
std::vector<std::string> save_weights(const Model&, const std::string&, const SaveWeights&) {
  refuse();
}

}  // namespace mhla::models

int mhla_model_convert(const mhla_conversion*, char** text) {
  *text = strdup(kRefusal);
  return 1 + static_cast<int>(mhla::ErrorCode::unsupported);
}
