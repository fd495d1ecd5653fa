#include "cli/torch_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "mhla/error.h"

namespace mhla::cli {
namespace {

constexpr const char* kWhere = "networks";
constexpr const char* kLibrary = "libmhla_torch.so";

// Where the environment says, beside the program, where an installation or a build has it.
std::vector<std::string> candidates() {
  if (const char* given = std::getenv("MHLA_TORCH_LIBRARY")) return {given};
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  std::vector<std::string> paths;
  if (!error) {
    const auto folder = program.parent_path();
    for (const char* place : {".", "../src/nn", "../lib", "../lib/mhla"}) {
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
      fail(ErrorCode::unsupported, kWhere,
           "the networks could not be loaded: ", why ? why : path.c_str());
    }
    tried += (tried.empty() ? "" : ", ") + path;
  }
  fail(ErrorCode::unsupported, kWhere, "networks need ", kLibrary,
       ", which was not found (looked at ", tried,
       "): build with LibTorch or set MHLA_TORCH_LIBRARY");
}

}  // namespace

void* torch_function(const char* name) {
  static void* const library = open_library();
  if (void* found = dlsym(library, name)) return found;
  fail(ErrorCode::unsupported, kWhere, kLibrary, " has no ", name,
       ": it is of another version, build both together");
}

}  // namespace mhla::cli
