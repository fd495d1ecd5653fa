#include "cli/model_info.h"

#include <cstdlib>
#include <iostream>
#include <memory>

#include "cli/torch_library.h"
#include "mhla/error.h"

namespace mhla::cli {

void model_info(const std::string& model, const std::vector<std::string>& options, bool json) {
  using Describe = int (*)(const char*, const char*, int, char**);
  const auto describe = reinterpret_cast<Describe>(torch_function("mhla_model_info"));
  std::string words;
  for (const std::string& option : options) words += (words.empty() ? "" : " ") + option;
  char* text = nullptr;
  const int failed = describe(model == "all" ? "" : model.c_str(), words.c_str(), json, &text);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, std::free);
  if (failed) throw Error(ErrorCode::invalid_argument, text);
  std::cout << text;
}

}  // namespace mhla::cli
