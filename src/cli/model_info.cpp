#include "cli/model_info.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>

#include "mhla/error.h"

namespace mhla::cli {
namespace {

constexpr const char* kLibrary = "libmhla_torch.so";

// Where the environment says, beside the program, where an installation or a build has it.
std::vector<std::string> candidates() {
  if (const char* given = std::getenv("MHLA_TORCH_LIBRARY")) return {given};
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  std::vector<std::string> paths;
  if (!error) {
    const auto folder = program.parent_path();
    for (const char* place : {".", "nn", "../lib", "../lib/mhla"}) {
      paths.push_back((folder / place / kLibrary).lexically_normal().string());
    }
  }
  return paths;
}

void* open_library() {
  std::string tried;
  for (const std::string& path : candidates()) {
    if (std::filesystem::exists(path)) {
      if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) return library;
      const char* why = dlerror();
      fail(ErrorCode::unsupported, "info",
           "the networks could not be loaded: ", why ? why : path.c_str());
    }
    tried += (tried.empty() ? "" : ", ") + path;
  }
  fail(ErrorCode::unsupported, "info", "networks need ", kLibrary,
       ", which was not found (looked at ", tried,
       "): build with LibTorch or set MHLA_TORCH_LIBRARY");
}

}  // namespace

void model_info(const std::string& model, const std::vector<std::string>& options, bool json) {
  using Describe = int (*)(const char*, const char*, int, char**);
  const auto describe = reinterpret_cast<Describe>(dlsym(open_library(), "mhla_model_info"));
  if (!describe) fail(ErrorCode::unsupported, "info", kLibrary, " is of another version");
  std::string words;
  for (const std::string& option : options) words += (words.empty() ? "" : " ") + option;
  char* text = nullptr;
  const int failed = describe(model == "all" ? "" : model.c_str(), words.c_str(), json, &text);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, std::free);
  if (failed) throw Error(ErrorCode::invalid_argument, text);
  std::cout << text;
}

}  // namespace mhla::cli
