// Finding and loading the modules that need LibTorch.
#include "cli/bench_peers.h"

#include <dlfcn.h>

#include <filesystem>

#include "cli/bench_models.h"

namespace mhla::cli {
namespace {

// The function `make` of the module beside the program; `asked` is what the user typed.
template <typename Make>
Make function_of(const char* file, const char* make, const char* asked) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path module = program.parent_path() / file;
  if (!fs::exists(module, ignored)) {
    fail(ErrorCode::unsupported, "bench", asked, ": this build is without LibTorch (no ",
         module.string(), "): configure with -DMHLA_TORCH=ON -DMHLA_PYTHON=PYTHON, a Python that ",
         "has torch, and build again");
  }
  // Never closed: LibTorch's threads and the functions we keep live in it.
  void* handle = dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) fail(ErrorCode::unsupported, "bench", asked, ": ", dlerror());
  const auto function = reinterpret_cast<Make>(dlsym(handle, make));
  if (function == nullptr) fail(ErrorCode::unsupported, "bench", asked, ": ", dlerror());
  return function;
}

}  // namespace

std::unique_ptr<Peers> load_torch_peers() {
  const auto make = function_of<decltype(&mhla_bench_make_peers)>(
      "mhla_bench_torch.so", "mhla_bench_make_peers", "--compare torch");
  return std::unique_ptr<Peers>(make());
}

std::unique_ptr<Networks> load_networks() {
  const auto make = function_of<decltype(&mhla_bench_make_networks)>(
      "mhla_bench_models.so", "mhla_bench_make_networks", "models");
  return std::unique_ptr<Networks>(make());
}

}  // namespace mhla::cli
