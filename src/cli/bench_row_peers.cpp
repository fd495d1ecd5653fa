// Which baselines take part in a row.
#include <algorithm>
#include <cstdio>
#include <map>

#include "cli/bench.h"
#include "cli/bench_timing.h"

namespace mhla::cli {
namespace {

constexpr double kLong = 4;         // seconds: from here on only with --slow, and once
constexpr double kTooLong = 60;     // seconds: never
constexpr double kDecided = 400;    // ms of a forward: its best way is also that of the backward
constexpr double kBackward = 3.5;   // forward and backward over forward: five products for two
constexpr double kUsualSpeed = 50;  // GFLOP/s, where no ceiling was measured

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "about %.0f s", seconds);
  return text;
}

// The least of a few runs: enough to tell which way is best.
double quick_time(const std::function<void()>& call) {
  constexpr double kQuick = 300;  // ms
  double least = time_once(call);
  for (int run = 0; run < 3 && least < kQuick; ++run) least = std::min(least, time_once(call));
  return least;
}

}  // namespace

RowPeers::RowPeers(const BenchRun& run, const std::vector<Peer>& peers, bool backward,
                   double ceiling, const std::map<std::string, BenchBaseline>& known,
                   const std::string& always) {
  struct Best {
    double ms;
    std::function<void()> call;
    bool once;
  };
  std::map<std::string, Best> best;
  const double speed = std::isnan(ceiling) ? kUsualSpeed : ceiling;
  for (const Peer& peer : peers) {
    const std::function<void()>& call = backward ? peer.forward_backward : peer.forward;
    if (!call) continue;
    const auto before = known.find(peer.family);
    if (before != known.end() && before->second.ms > kDecided && before->second.way != peer.way) {
      continue;
    }
    BenchBaseline& baseline = baselines_[peer.family];
    const double foreseen = peer.flops / speed * 1e-9 * (backward ? kBackward : 1);
    const bool too_long = foreseen > kTooLong || (foreseen > kLong && !run.options.slow);
    if (too_long && peer.family != always) {
      baseline.skipped = "would take " + seconds_text(foreseen) +
                         (foreseen > kTooLong ? "" : ", --slow runs it once");
      continue;
    }
    const bool once = foreseen > kLong;
    pause_between();
    const double ms = once ? time_once(call) : quick_time(call);
    run.say("  " + peer.family + " " + peer.way + ": " + std::to_string(ms) + " ms");
    const auto found = best.find(peer.family);
    if (found != best.end() && found->second.ms <= ms) continue;
    best[peer.family] = {ms, call, once};
    baseline = {.ms = ms, .way = peer.way};
  }
  for (const auto& [family, winner] : best) {
    if (winner.once) continue;
    families_.push_back(family);
    calls_.push_back(winner.call);
  }
}

void RowPeers::finish(const std::vector<double>& times, std::size_t first, BenchRow& row) const {
  row.baselines = baselines_;
  for (std::size_t i = 0; i < families_.size(); ++i) {
    row.baselines[families_[i]].ms = times[first + i];
  }
}

}  // namespace mhla::cli
