// `mhla bench cuda`: the GPU benchmark is a Python script beside the sources.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cli/bench.h"

namespace mhla::cli {
namespace {

namespace fs = std::filesystem;

// In this folder or one above it.
fs::path find_script(fs::path folder) {
  std::error_code ignored;
  for (; !folder.empty(); folder = folder.parent_path()) {
    fs::path script = folder / "bench" / "cuda.py";
    if (fs::exists(script, ignored)) return script;
    if (folder == folder.root_path()) break;
  }
  return {};
}

// What the script does not take would be silently ignored.
void refuse_cpu_flags(const BenchOptions& options) {
  const auto refuse = [](bool given, const char* flag) {
    if (given) fail("bench", flag, ": has no meaning for 'mhla bench cuda'");
  };
  refuse(!options.dtypes.empty(), "--dtype");
  refuse(options.threads != 0, "--threads");
  refuse(options.growth, "--growth");
  refuse(options.slow, "--slow");
}

}  // namespace

void bench_cuda(const BenchOptions& options) {
  refuse_cpu_flags(options);
  std::error_code ignored;
  fs::path script = find_script(fs::current_path(ignored));
  if (script.empty())
    script = find_script(fs::read_symlink("/proc/self/exe", ignored).parent_path());
  if (script.empty()) {
    fail(ErrorCode::unsupported, "bench",
         "bench/cuda.py is neither above this folder nor above the ",
         "program: run 'python3 bench/cuda.py' in a source tree of mhla");
  }
  const char* python = std::getenv("MHLA_PYTHON");
  std::vector<std::string> words = {python != nullptr && *python ? python : "python3",
                                    script.string(), "--what", options.what};
  if (options.json) words.insert(words.end(), {"--json", "-"});
  if (!options.implementation.empty()) {
    words.insert(words.end(), {"--implementation", options.implementation});
  }
  if (!options.shapes.empty()) words.push_back("--shape");
  words.insert(words.end(), options.shapes.begin(), options.shapes.end());
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  fail(ErrorCode::unsupported, "bench", "could not start ", words[0], ": ", std::strerror(errno),
       " (MHLA_PYTHON names another one)");
}

}  // namespace mhla::cli
