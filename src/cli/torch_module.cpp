#include "cli/torch_module.h"

#include <dlfcn.h>

#include <filesystem>

#include "mhla/error.h"

namespace mhla::cli {

void* module_symbol(const char* file, const char* symbol, const char* where, const char* asked) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  fs::path module = program.parent_path() / file;
  if (!fs::exists(module, ignored)) {  // installed
    module = (program.parent_path() / "../lib/mhla" / file).lexically_normal();
  }
  if (!fs::exists(module, ignored)) {
    fail(ErrorCode::unsupported, where, asked, ": this program was built without LibTorch (no ",
         file, " beside it or in ", module.parent_path().string(),
         "): configure with -DMHLA_TORCH=ON -DMHLA_PYTHON=PYTHON, a Python that ",
         "has torch, and build again");
  }
  // Never closed: LibTorch's threads and the functions we keep live in it.
  void* handle = dlopen(module.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) fail(ErrorCode::unsupported, where, asked, ": ", dlerror());
  void* function = dlsym(handle, symbol);
  if (function == nullptr) fail(ErrorCode::unsupported, where, asked, ": ", dlerror());
  return function;
}

}  // namespace mhla::cli
