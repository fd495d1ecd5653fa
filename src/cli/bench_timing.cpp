// The stop watch.
#include "cli/bench_timing.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace mhla::cli {
namespace {

constexpr int kRounds = 3;
constexpr double kSlow = 1500;  // ms; from here on two runs, the first among them, are enough
constexpr double kWarm = 300;   // ms; shorter runs are repeated once before they count
constexpr int kMostRuns = 200;  // a round: enough for any median
// NOTE: OpenMP's threads spin for some milliseconds after a parallel part and would take a core
// from the next contender.
constexpr auto kPause = std::chrono::milliseconds(30);

}  // namespace

double time_once(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
  return taken.count();
}

void pause_between() { std::this_thread::sleep_for(kPause); }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

std::vector<double> race(const std::vector<std::function<void()>>& calls, double seconds) {
  std::vector<std::vector<double>> times(calls.size());
  std::vector<double> first(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    pause_between();
    first[i] = time_once(calls[i]);
    if (first[i] > kSlow) times[i].push_back(first[i]);
  }
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (first[i] > kSlow && round > 0) continue;
      pause_between();
      if (first[i] < kWarm) calls[i]();  // caches and threads are its own again
      double spent = 0;
      for (int run = 0; run < kMostRuns; ++run) {
        times[i].push_back(time_once(calls[i]));
        spent += times[i].back();
        if (spent > seconds * 1000 / kRounds) break;
      }
    }
  }
  std::vector<double> medians;
  medians.reserve(times.size());
  for (const std::vector<double>& t : times) medians.push_back(median(t));
  return medians;
}

}  // namespace mhla::cli
