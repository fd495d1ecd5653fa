// The parts of `mhla bench`.
#pragma once

#include <string>
#include <vector>

#include "cli/bench_peers.h"
#include "cli/bench_report.h"
#include "cli/bench_shapes.h"

namespace mhla::cli {

struct BenchOptions {
  std::string target;   // cpu, cuda, models
  std::string compare;  // torch, or nothing
  std::vector<std::string> shapes = {};
  std::vector<std::string> dtypes = {};  // empty: f32 and bf16
  std::string what = "both";
  std::string implementation = {};
  int threads = 0;       // 0: all cores
  double seconds = 0.3;  // each contender of a row is measured for so long
  bool slow = false, growth = false, json = false;
};

// What the parts of one run share.
struct BenchRun {
  const BenchOptions& options;
  std::vector<DType> dtypes;
  int threads;
  Peers* peers;  // null without a comparison
  BenchReport& report;

  void say(const std::string& line) const;  // progress, on stderr
};

void bench_cpu(const BenchOptions& options);
void bench_operator(const BenchRun& run, const BenchShape& shape);
void bench_decode(const BenchRun& run, const BenchShape& shape);
void bench_growth(const BenchRun& run);

// The fastest way of each family at one row. Baselines that take too long are left out or, with
// --slow, run once. The chosen ones join `calls`, which are then raced; see finish().
class RowPeers {
 public:
  // `known`: the best way of each family at an earlier row; slow ones do not compete again.
  // `always`: a family that is run once however long it takes.
  RowPeers(const BenchRun& run, const std::vector<Peer>& peers, bool backward, double ceiling,
           const std::map<std::string, BenchBaseline>& known = {}, const std::string& always = {});
  const std::vector<std::function<void()>>& calls() const { return calls_; }
  // Times of calls(), in milliseconds, starting at `first`.
  void finish(const std::vector<double>& times, std::size_t first, BenchRow& row) const;

 private:
  std::vector<std::string> families_;
  std::vector<std::function<void()>> calls_;
  std::map<std::string, BenchBaseline> baselines_;
};

// One forward of whole networks, on the GPU where there is one.
void bench_models(const BenchOptions& options);

// Hands over to bench/cuda.py; returns only by throwing.
[[noreturn]] void bench_cuda(const BenchOptions& options);

}  // namespace mhla::cli
