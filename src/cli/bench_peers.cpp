// Finding and loading the module with the LibTorch comparison.
#include "cli/bench_peers.h"

#include <dlfcn.h>

#include <filesystem>

namespace mhla::cli {

std::unique_ptr<Peers> load_torch_peers() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path module = program.parent_path() / "mhla_bench_torch.so";
  if (!fs::exists(module, ignored)) {
    fail(ErrorCode::unsupported, "bench", "--compare torch: this build is without LibTorch (no ",
         module.string(), "): configure with -DMHLA_TORCH=ON -DMHLA_PYTHON=PYTHON, a Python that ",
         "has torch, and build again, or leave --compare out");
  }
  // Never closed: LibTorch's threads and the functions we keep live in it.
  void* handle = dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) fail(ErrorCode::unsupported, "bench", "--compare torch: ", dlerror());
  const auto make = reinterpret_cast<decltype(&mhla_bench_make_peers)>(
      dlsym(handle, "mhla_bench_make_peers"));
  if (make == nullptr) fail(ErrorCode::unsupported, "bench", "--compare torch: ", dlerror());
  return std::unique_ptr<Peers>(make());
}

}  // namespace mhla::cli
