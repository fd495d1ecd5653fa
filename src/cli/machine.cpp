// CPU model and features, compiler.
#include "cli/machine.h"

#include <fstream>
#include <thread>

namespace mhla::cli {

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "gcc " __VERSION__;
#else
  return "unknown";
#endif
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::vector<std::string> cpu_features() {
  std::vector<std::string> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("sse4.2")) found.emplace_back("sse4.2");
  if (__builtin_cpu_supports("avx")) found.emplace_back("avx");
  if (__builtin_cpu_supports("avx2")) found.emplace_back("avx2");
  if (__builtin_cpu_supports("fma")) found.emplace_back("fma");
  if (__builtin_cpu_supports("avx512f")) found.emplace_back("avx512f");
  if (__builtin_cpu_supports("avx512bw")) found.emplace_back("avx512bw");
  if (__builtin_cpu_supports("avx512vnni")) found.emplace_back("avx512vnni");
#elif defined(__aarch64__)
  found.emplace_back("neon");
#endif
  return found;
}

unsigned cpu_threads() { return std::thread::hardware_concurrency(); }

}  // namespace mhla::cli
