// One shape: ours against the f64 reference, then against the clock and the baselines.
#include <algorithm>
#include <cstdio>

#include "cli/bench.h"
#include "cli/bench_check.h"
#include "cli/bench_timing.h"

namespace mhla::cli {
namespace {

constexpr double kQuickFlops = 2e10;  // of a forward; the largest shapes have more

// A plan with its workspaces, ready to be called again and again.
class Ours {
 public:
  Ours(const Problem& problem, const std::string& implementation, int threads, BenchData& data)
      : plan_(plan(problem, {.implementation = implementation, .threads = threads})),
        data_(data),
        bytes_(std::max(plan_.forward_workspace(), plan_.backward_workspace())),
        workspace_(verify::allocate(verify::host_memory(), bytes_)) {}

  const Plan& get() const { return plan_; }
  void run_forward() const {
    forward(plan_, data_.inputs(), data_.outputs(), {workspace_.get(), bytes_});
  }
  void run_both() const {
    run_forward();
    backward(plan_, data_.backward_inputs(), data_.gradients(), {workspace_.get(), bytes_});
  }

 private:
  Plan plan_;
  BenchData& data_;
  std::size_t bytes_;
  verify::Allocation workspace_;
};

std::string error_text(const std::string& who, const BenchAgreement& agreement) {
  char text[128];
  std::snprintf(text, sizeof text, "%s: relative error %.2g of %s, %.2g allowed%s", who.c_str(),
                agreement.error, agreement.tensor.c_str(), agreement.tolerance,
                agreement.ok() ? "" : ": WRONG");
  return text;
}

class Case {
 public:
  Case(const BenchRun& run, const BenchShape& shape, DType dtype)
      : run_(run),
        shape_(shape),
        problem_(with(shape.problem, dtype)),
        data_(problem_, shape.fused),
        ours_(problem_, run.options.implementation, run.threads, data_) {
    if (run.peers != nullptr) {
      peers_ = run.peers->of({.problem = problem_, .inputs = data_.inputs(), .d_o = data_.d_o});
    }
  }

  BenchData& data() { return data_; }

  // Ours and the compositions. Only f32 compositions must agree: what a 16-bit one rounds between
  // its operations is its own affair.
  bool verify(const BenchTruth& truth) {
    const bool gradients = !truth.d_q.empty();
    data_.fill_output_gradient(truth.problem.layout.tokens());
    data_.poison_outputs();
    gradients ? ours_.run_both() : ours_.run_forward();
    agreement_ = check_results(truth, data_);
    if (gradients) {
      agreement_ = worse(agreement_, check_mixing_gradient(truth, ours_.get(), data_));
    }
    run_.say(error_text("  " + ours_.get().implementation(), agreement_));
    bool ok = agreement_.ok();
    for (const Peer& peer : peers_) {
      if (!peer.evaluate) continue;
      // Their gradients come from autograd: where one takes seconds, the output has to do.
      const bool differentiate = gradients && peer.flops < kQuickFlops;
      data_.poison_outputs();
      peer.evaluate(data_.outputs(), differentiate ? data_.gradients() : BackwardOutputs{});
      const BenchAgreement theirs = differentiate ? check_results(truth, data_)
                                                  : check_output(truth, data_);
      run_.say(error_text("  " + peer.way, theirs));
      if (problem_.dtype == DType::f32) ok = ok && theirs.ok();
    }
    data_.fill_output_gradient(problem_.layout.tokens());
    return ok;
  }

  BenchRow measure(bool backward) {
    BenchRow row = describe(backward);
    run_.say("  " + row.what);
    const bool once = shape_.with_softmax && !backward && problem_.dtype == DType::f32;
    const RowPeers peers(run_, peers_, backward, row.ceiling, known_, once ? "softmax" : "");
    std::vector<std::function<void()>> calls;
    calls.emplace_back([&] { backward ? ours_.run_both() : ours_.run_forward(); });
    std::unique_ptr<Ours> single;
    if (!backward && run_.threads > 1) {
      single = std::make_unique<Ours>(problem_, ours_.get().implementation(), 1, data_);
      calls.emplace_back([&] { single->run_forward(); });
    }
    // NOTE: the machine's speed changes by a quarter within seconds, so that times of two rows say
    // little about each other.
    std::unique_ptr<BenchData> wide_data;
    std::unique_ptr<Ours> wide;
    const std::size_t wide_at = calls.size();
    if (problem_.dtype != DType::f32 && std::ranges::count(run_.dtypes, DType::f32) > 0) {
      const Problem problem = with(problem_, DType::f32);
      wide_data = std::make_unique<BenchData>(problem, shape_.fused);
      wide = std::make_unique<Ours>(problem, run_.options.implementation, run_.threads, *wide_data);
      calls.emplace_back([&] { backward ? wide->run_both() : wide->run_forward(); });
    }
    const std::size_t first = calls.size();
    calls.insert(calls.end(), peers.calls().begin(), peers.calls().end());
    const std::vector<double> times = race(calls, run_.options.seconds);
    row.ms = times[0];
    if (single) row.thread_speedup = times[1] / times[0];
    if (wide) row.f32_ms = times[wide_at];
    peers.finish(times, first, row);
    known_ = row.baselines;
    return row;
  }

  BenchRow describe(bool backward) const {
    const Cost& cost = ours_.get().cost();
    const auto ceiling = run_.report.ceilings.find(problem_.dtype);
    return {.shape = shape_.name,
            .what = backward ? "forward+backward" : "forward",
            .dtype = problem_.dtype,
            .implementation = ours_.get().implementation(),
            .is_long = shape_.is_long,
            .tokens = problem_.layout.tokens(),
            .flops = cost.forward_flops + (backward ? cost.backward_flops : 0),
            .ceiling = ceiling == run_.report.ceilings.end() ? kNotMeasured : ceiling->second,
            .error = agreement_.error,
            .tolerance = agreement_.tolerance};
  }

 private:
  static Problem with(Problem problem, DType dtype) {
    problem.dtype = dtype;
    return problem;
  }

  const BenchRun& run_;
  const BenchShape& shape_;
  Problem problem_;
  BenchData data_;
  Ours ours_;
  std::vector<Peer> peers_;
  BenchAgreement agreement_;
  std::map<std::string, BenchBaseline> known_;  // of the row before
};

}  // namespace

void bench_operator(const BenchRun& run, const BenchShape& shape) {
  const bool with_forward = run.options.what != "backward";
  const bool with_backward = run.options.what != "forward";
  std::optional<BenchTruth> truth;
  for (const DType dtype : run.dtypes) {
    run.say(shape.name + " " + name(dtype));
    Case one(run, shape, dtype);
    if (!truth) truth = make_truth(shape.problem, one.data(), with_backward);
    const bool ok = one.verify(*truth);
    run.report.wrong += ok ? 0 : 1;
    for (const bool backward : {false, true}) {
      if (!(backward ? with_backward : with_forward)) continue;
      // A wrong result has no time.
      run.report.rows.push_back(ok ? one.measure(backward) : one.describe(backward));
    }
  }
}

}  // namespace mhla::cli
