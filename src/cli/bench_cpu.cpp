// `mhla bench cpu`: the machine's ceiling, then every shape, then growth.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <thread>

#include "cli/bench.h"
#include "cli/bench_data.h"
#include "cli/bench_timing.h"
#include "cli/machine.h"
#include "cli/program.h"

namespace mhla::cli {
namespace {

constexpr std::int64_t kGemmSize = 2048;  // far beyond the caches, and still a fraction of a second

void measure_ceilings(const BenchRun& run) {
  if (run.peers == nullptr) return;
  for (const DType dtype : run.dtypes) {
    const auto times = race({run.peers->gemm(kGemmSize, dtype)}, run.options.seconds);
    const double flops = 2.0 * kGemmSize * kGemmSize * kGemmSize;
    run.report.ceilings[dtype] = flops / times[0] * 1e-6;
    char line[64];
    std::snprintf(line, sizeof line, "%s gemm: %.0f GFLOP/s", name(dtype),
                  run.report.ceilings[dtype]);
    run.say(line);
  }
}

// Busy cores over a short while in which this program sleeps; 0 where the system does not tell.
double load_of_others() {
  struct Ticks {
    double idle = 0, all = 0;
  };
  const auto read = [] {
    std::ifstream file("/proc/stat");
    std::string word;
    file >> word;  // "cpu": user nice system idle iowait irq softirq steal
    Ticks ticks;
    double value = 0;
    for (int i = 0; i < 8 && file >> value; ++i) {
      ticks.all += value;
      if (i == 3 || i == 4) ticks.idle += value;
    }
    return ticks;
  };
  const Ticks before = read();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const Ticks after = read();
  const double all = after.all - before.all;
  return all > 0 ? (1 - (after.idle - before.idle) / all) * cpu_threads() : 0;
}

}  // namespace

void BenchRun::say(const std::string& line) const {
  static const auto start = std::chrono::steady_clock::now();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  std::fprintf(stderr, "bench %5.1f s: %s\n", passed.count(), line.c_str());
}

void bench_growth(const BenchRun& run) {
  run.say("growth");
  std::vector<std::unique_ptr<BenchData>> data;
  std::vector<verify::Allocation> workspaces;
  std::vector<std::function<void()>> calls;
  for (std::int64_t tokens = 8192; tokens <= 65536; tokens *= 2) {
    const Problem problem = growth_shape(tokens).problem;
    const Plan chosen = plan(
        problem, {.implementation = run.options.implementation, .threads = run.threads});
    data.push_back(std::make_unique<BenchData>(problem, true));
    workspaces.push_back(verify::allocate(verify::host_memory(), chosen.forward_workspace()));
    const Workspace workspace{workspaces.back().get(), chosen.forward_workspace()};
    calls.emplace_back([chosen, workspace, d = data.back().get()] {
      forward(chosen, d->inputs(), d->outputs(), workspace);
    });
    run.report.growth.push_back({.tokens = tokens, .ms = 0, .flops = chosen.cost().forward_flops});
  }
  const std::vector<double> times = race(calls, run.options.seconds);
  for (std::size_t i = 0; i < times.size(); ++i) run.report.growth[i].ms = times[i];
}

void bench_cpu(const BenchOptions& options) {
  const std::vector<BenchShape> shapes = select_shapes(options.shapes);
  const std::unique_ptr<Peers> peers = options.compare.empty() ? nullptr : load_torch_peers();
  BenchReport report;
  report.machine = cpu_model() + ", " + std::to_string(cpu_threads()) + " cores";
  report.compiler = compiler();
  report.compared_with = peers ? peers->version() : "";
  report.threads = options.threads > 0 ? options.threads : static_cast<int>(cpu_threads());
  if (peers) peers->set_threads(report.threads);
  report.load = load_of_others();
  BenchRun run{.options = options,
               .dtypes = {},
               .threads = report.threads,
               .peers = peers.get(),
               .report = report};
  for (const std::string& dtype : options.dtypes) run.dtypes.push_back(parse_dtype(dtype));
  if (run.dtypes.empty()) run.dtypes = {DType::f32, DType::bf16};

  if (report.load > kTooMuchLoad) run.say("other programs are busy: do not trust these times");
  measure_ceilings(run);
  for (const BenchShape& shape : shapes) {
    if (shape.positions.empty()) {
      bench_operator(run, shape);
    } else {
      bench_decode(run, shape);
    }
  }
  if (options.growth || options.shapes.empty()) bench_growth(run);
  std::cout << (options.json ? to_json(report).dump(2) + "\n" : to_text(report));
  if (report.wrong > 0) throw Failed{};
}

}  // namespace mhla::cli
