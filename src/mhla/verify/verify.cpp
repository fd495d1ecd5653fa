// Spreads the cases over the cores and gathers the results by form.
#include "mhla/verify/verify.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "mhla/verify/random.h"
#include "mhla/verify/trial.h"

namespace mhla::verify {
namespace {

class Collector {
 public:
  Collector(const Options& options, std::size_t total) : options_(options), total_(total) {}

  void record(const Case& c, const std::string& form, const std::string& implementation,
              const Outcome& outcome) {
    const std::lock_guard lock(mutex_);
    const char* dtype = name(c.problem.dtype);
    FormResult& result = forms_[{implementation, form, static_cast<int>(c.problem.dtype)}];
    result.form = form;
    result.implementation = implementation;
    result.dtype = dtype;
    ++result.cases;
    ++report_.runs;
    result.mean_ratio += (outcome.worst.ratio - result.mean_ratio) /
                         static_cast<double>(result.cases);
    if (result.worst_case.empty() || outcome.worst.ratio > result.ratio) {
      result.worst_error = outcome.worst.error;
      result.tolerance = outcome.worst.tolerance;
      result.ratio = outcome.worst.ratio;
      result.worst_case = c.name;
      result.worst_tensor = outcome.tensor;
    }
    if (outcome.wrong.empty()) return;
    ++result.failed;
    ++report_.failed;
    std::string reason;
    for (const std::string& part : outcome.wrong) reason += (reason.empty() ? "" : "; ") + part;
    report_.failures.push_back({c.name, form, implementation, reason, c.seed, outcome.worst.ratio});
  }

  void done(bool tried, bool too_heavy) {
    const std::lock_guard lock(mutex_);
    ++(tried ? report_.cases : too_heavy ? report_.too_heavy : report_.unserved);
    if (options_.progress) options_.progress(++done_, total_);
  }

  Report finish() {
    for (const auto& entry : forms_) report_.forms.push_back(entry.second);
    std::sort(report_.failures.begin(), report_.failures.end(),
              [](const Failure& a, const Failure& b) {
                return std::tie(a.implementation, a.name, a.seed) <
                       std::tie(b.implementation, b.name, b.seed);
              });
    return std::move(report_);
  }

 private:
  const Options& options_;
  std::size_t total_, done_ = 0;
  std::mutex mutex_;
  std::map<std::tuple<std::string, std::string, int>, FormResult> forms_;
  Report report_;
};

// Calls `trial`; an exception is a failure of the case, not of the program.
template <typename Trial>
Outcome guarded(Trial trial, const std::function<void()>& on_device_error = {}) {
  try {
    return trial();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::device && on_device_error) on_device_error();
    return {.worst = {}, .tensor = "", .wrong = {error.what()}};
  } catch (const std::exception& error) {
    return {.worst = {}, .tensor = "", .wrong = {error.what()}};
  }
}

// The plan, nothing when the subject does not serve the case, or the error that it should not make.
struct Planned {
  std::optional<Plan> plan;
  std::string error;
};
Planned plan_for(const Subject& subject, const Case& c) {
  Problem problem = c.problem;
  problem.device = subject.device;
  try {
    return {subject.plan(problem), {}};
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unsupported) return {};
    return {{}, error.what()};
  } catch (const std::exception& error) {
    return {{}, error.what()};
  }
}

struct Jury {
  const std::vector<Subject>& subjects;
  bool streaming, heavy_on_cpu;
  std::mutex accelerator = {};  // one case at a time there
  // A kernel that faults takes the device with it: which case that was, for those that follow.
  std::string lost_in = {};
};

struct Tried {
  bool somewhere = false, too_heavy = false;
};
Tried try_everywhere(const Case& c, Jury& jury, Collector& collector) {
  std::optional<Truth> truth;  // expensive: only when something serves the case
  const auto the_truth = [&]() -> const Truth& {
    if (!truth) truth = truth_of(c);
    return *truth;
  };
  bool tried = false, too_heavy = false;
  for (const Subject& subject : jury.subjects) {
    const bool on_cpu = subject.device.kind == Device::Kind::cpu;
    if (c.heavy && on_cpu && !jury.heavy_on_cpu) {
      too_heavy = true;
      continue;
    }
    std::unique_lock<std::mutex> lock(jury.accelerator, std::defer_lock);
    if (!on_cpu) lock.lock();
    const Planned planned = plan_for(subject, c);
    if (!planned.plan && planned.error.empty()) continue;
    tried = true;
    if (!on_cpu && !jury.lost_in.empty()) {
      collector.record(
          c, c.form, subject.name,
          {.worst = {}, .tensor = "", .wrong = {"the device was lost in: " + jury.lost_in}});
      continue;
    }
    const auto trial = [&] {
      if (!planned.plan) fail("verify", planned.error);
      return try_case(c, the_truth(), subject, *planned.plan);
    };
    collector.record(c, c.form, subject.name, guarded(trial, [&] { jury.lost_in = c.name; }));
  }
  if (jury.streaming && (!c.heavy || jury.heavy_on_cpu) && !refuses_streaming(c)) {
    tried = true;
    const std::string form = std::string("streaming/") + name(c.problem.mask);
    collector.record(c, form, kStreaming, guarded([&] { return try_streaming(c, the_truth()); }));
  }
  return {tried, too_heavy};
}

Report run(const Options& options, const std::vector<Subject>& subjects, bool streaming) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Case> all = selected_cases(options);
  Collector collector(options, all.size());
  Jury jury{subjects, streaming, options.heavy};
  std::atomic<std::size_t> next = 0;
  std::exception_ptr failure;  // of the jury itself, out of memory for example
  std::mutex failing;
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < all.size(); i = next++) {
        Tried tried;
        for (const std::uint64_t seed : seeds_of(all[i], options)) {
          Case drawn = all[i];
          drawn.seed = seed;
          tried = try_everywhere(drawn, jury, collector);
        }
        collector.done(tried.somewhere, tried.too_heavy);
      }
    } catch (...) {
      const std::lock_guard lock(failing);
      failure = std::current_exception();
    }
  };
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t wanted = options.threads > 0 ? options.threads : cores;
  // These join when they go: a thread too many is an error then, not the end of the process.
  std::vector<std::jthread> workers;
  for (std::size_t i = 0; i < std::min(wanted, all.size()); ++i) workers.emplace_back(work);
  workers.clear();
  if (failure) std::rethrow_exception(failure);
  Report report = collector.finish();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  report.seconds = elapsed.count();
  return report;
}

}  // namespace

std::vector<Case> selected_cases(const Options& options) {
  std::vector<Case> all = cases();
  std::erase_if(all, [&](const Case& c) {
    return c.name.find(options.filter) == std::string::npos &&
           c.form.find(options.filter) == std::string::npos;
  });
  return all;
}

std::vector<std::uint64_t> seeds_of(const Case& c, const Options& options) {
  std::vector<std::uint64_t> seeds = {options.seed.value_or(c.seed)};
  Random random(seeds.front());
  while (seeds.size() < static_cast<std::size_t>(options.seeds)) seeds.push_back(random.bits());
  return seeds;
}

Report verify(const Options& options) {
  if (options.implementation == kStreaming) return run(options, {}, true);
  if (options.implementation.empty()) return run(options, subjects(), true);
  const std::vector<std::string> compiled = implementations();
  if (std::find(compiled.begin(), compiled.end(), options.implementation) == compiled.end()) {
    std::string known;
    for (const std::string& name : compiled) known += name + ", ";
    fail("verify", "implementation: unknown '", options.implementation, "' (known: ", known,
         kStreaming, ")");
  }
  return run(options, subjects(options.implementation), false);
}

Report verify(const Options& options, const std::vector<Subject>& subjects) {
  return run(options, subjects, false);
}

}  // namespace mhla::verify
