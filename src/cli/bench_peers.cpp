// Loading the modules of the benchmarks.
#include "cli/bench_peers.h"

#include "cli/bench_models.h"
#include "cli/torch_module.h"

namespace mhla::cli {

std::unique_ptr<Peers> load_torch_peers() {
  const auto make = module_function<decltype(&mhla_bench_make_peers)>(
      "mhla_bench_torch.so", "mhla_bench_make_peers", "bench", "--compare torch");
  return std::unique_ptr<Peers>(make());
}

std::unique_ptr<Networks> load_networks() {
  const auto make = module_function<decltype(&mhla_bench_make_networks)>(
      "mhla_bench_models.so", "mhla_bench_make_networks", "bench", "models");
  return std::unique_ptr<Networks>(make());
}

}  // namespace mhla::cli
