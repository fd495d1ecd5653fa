// One token at a time: what a step costs early and late in a sequence.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <optional>

#include "cli/bench.h"
#include "cli/bench_data.h"
#include "cli/bench_timing.h"
#include "mhla/core/half.h"
#include "mhla/verify/rounding.h"

namespace mhla::cli {
namespace {

constexpr double kLongPrompt = 40;  // seconds; longer reading only with --slow
// Stepped through: what is prepared differs from block to block.
constexpr std::int64_t kBlocks = 18;
// Rows of the mixing after those: a state prepares mixtures for blocks to come, and a stream that
// is about to end would do less.
constexpr std::int64_t kBeyond = 80;

// Tokens of a prompt or of a few steps, with their outputs.
struct Piece {
  std::int64_t tokens;
  verify::Allocation memory;
  TensorView q, k, v, o;  // [B, T, H, D]

  Piece(const Problem& problem, std::int64_t count, std::uint64_t seed) : tokens(count) {
    const auto shaped = [&](std::int64_t width) {
      return TensorView::contiguous(nullptr, problem.dtype,
                                    {problem.batch, count, problem.heads, width});
    };
    q = k = shaped(problem.dk);
    v = o = shaped(problem.dv);
    std::size_t bytes = 0;
    for (const TensorView* view : {&q, &k, &v, &o}) bytes += bytes_of(*view);
    memory = verify::allocate(verify::host_memory(), bytes);
    std::byte* at = static_cast<std::byte*>(memory.get());
    for (TensorView* view : {&q, &k, &v, &o}) {
      view->data = at;
      at += bytes_of(*view);
      fill_random(*view, ++seed);
    }
  }
  static std::size_t bytes_of(const TensorView& view) {
    return static_cast<std::size_t>(view.size()) * size_of(view.dtype);
  }
};

TensorView token(const TensorView& tensor, std::int64_t t) {
  TensorView one = tensor;
  one.data = static_cast<std::byte*>(tensor.data) +
             t * tensor.strides[1] * static_cast<std::int64_t>(size_of(tensor.dtype));
  one.shape[1] = 1;
  return one;
}

// Prompt and steps of one head behind one another, in f64.
std::vector<double> joined(const TensorView& a, const TensorView& b) {
  std::vector<double> values;
  for (const TensorView* tensor : {&a, &b}) {
    const TensorView head = one_head(*tensor, tensor->shape[0] - 1, tensor->shape[2] - 1,
                                     tensor->shape[1]);
    with_dtype(head.dtype, [&]<typename T>(T) {
      for (std::int64_t n = 0; n < head.shape[1]; ++n) {
        const T* row = static_cast<const T*>(head.data) + n * head.strides[1];
        for (std::int64_t d = 0; d < head.shape[3]; ++d) values.push_back(to_float(row[d]));
      }
    });
  }
  return values;
}

// The outputs of the steps against one f64 call over prompt and steps together.
double step_error(const Problem& problem, const MixingMatrix& mixing, const Piece& prompt,
                  const Piece& steps) {
  Problem p = problem;
  p.batch = p.heads = 1;
  p.dtype = DType::f64;
  const std::int64_t n = prompt.tokens + steps.tokens;
  p.layout = BlockLayout::sequence(n, problem.layout.cut());
  const std::vector<double> q = joined(prompt.q, steps.q), k = joined(prompt.k, steps.k),
                            v = joined(prompt.v, steps.v), got = joined(prompt.o, steps.o);
  std::vector<double> expected(got.size());
  forward(plan(p, {.implementation = "reference"}),
          {.q = TensorView::of(q.data(), {1, n, 1, p.dk}),
           .k = TensorView::of(k.data(), {1, n, 1, p.dk}),
           .v = TensorView::of(v.data(), {1, n, 1, p.dv}),
           .mixing = mixing.view()},
          {.o = TensorView::of(expected.data(), {1, n, 1, p.dv})});
  double difference = 0, norm = 0;
  for (std::size_t i = static_cast<std::size_t>(prompt.tokens * p.dv); i < got.size(); ++i) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

class Decode {
 public:
  Decode(const BenchRun& run, const BenchShape& shape, DType dtype)
      : run_(run),
        shape_(shape),
        problem_(with(shape.problem, dtype)),
        block_(problem_.layout.cut().block[0]),
        mixing_(MixingMatrix::causal_uniform(BlockLayout::sequence(
            shape.positions.back() + (kBlocks + kBeyond) * block_, problem_.layout.cut()))),
        prompt_(problem_, shape.positions.front(), 10),
        steps_(problem_, block_, 20),
        state_(problem_, mixing_) {}

  void run() {
    double piece_ms = 0;
    for (const std::int64_t position : shape_.positions) {
      const std::int64_t pieces = (position - state_.tokens()) / prompt_.tokens;
      // Twice: the more blocks are closed, the longer the opening of a block takes.
      const double foreseen = 2 * piece_ms * static_cast<double>(pieces) / 1000;
      if (foreseen > kLongPrompt && !run_.options.slow) {
        BenchRow row = describe(position);
        row.skipped = "reading " + std::to_string(position) + " tokens would take about " +
                      std::to_string(static_cast<int>(foreseen)) + " s, --slow does it";
        run_.report.rows.push_back(row);
        continue;
      }
      // The prompt again and again; later positions need no truth of their own.
      while (state_.tokens() < position) {
        piece_ms = time_once([&] { state_.prefill(prompt_.q, prompt_.k, prompt_.v, prompt_.o); });
      }
      run_.report.rows.push_back(at(position));
    }
  }

 private:
  static Problem with(Problem problem, DType dtype) {
    problem.dtype = dtype;
    return problem;
  }

  // Times of the steps through one block; the first opens it.
  std::vector<double> walk(State& branch) {
    std::vector<double> times;
    for (std::int64_t t = 0; t < steps_.tokens; ++t) {
      times.push_back(time_once([&] {
        branch.step(token(steps_.q, t), token(steps_.k, t), token(steps_.v, t), token(steps_.o, t));
      }));
    }
    return times;
  }

  BenchRow describe(std::int64_t position) const {
    const double lanes = static_cast<double>(problem_.batch * problem_.heads);
    return {.shape = shape_.name,
            .what = "decode",
            .dtype = problem_.dtype,
            .implementation = "state",
            .tokens = position,
            .flops = 4 * lanes * static_cast<double>(problem_.dk * problem_.dv)};  // update, read
  }

  BenchRow at(std::int64_t position) {
    BenchRow row = describe(position);
    std::vector<double> all, means, worst;
    State branch = state_.fork();
    walk(branch);
    if (position == shape_.positions.front() && !check(row)) return row;
    for (std::int64_t round = 1; round < kBlocks; ++round) {
      const std::vector<double> times = walk(branch);
      all.insert(all.end(), times.begin(), times.end());
      means.push_back(std::accumulate(times.begin(), times.end(), 0.0) /
                      static_cast<double>(times.size()));
      worst.push_back(*std::max_element(times.begin(), times.end()));
    }
    row.ms = median(all);
    row.block_ms = median(means);
    row.worst_ms = median(worst);
    if (run_.peers != nullptr) {
      const RowPeers peers(run_, run_.peers->decode(problem_, position), false, kNotMeasured);
      peers.finish(race(peers.calls(), run_.options.seconds), 0, row);
    }
    return row;
  }

  bool check(BenchRow& row) {
    row.error = step_error(problem_, mixing_, prompt_, steps_);
    const double terms = static_cast<double>(prompt_.tokens + problem_.dk);
    row.tolerance = 8 *
                    (verify::unit_roundoff(DType::f32) * std::sqrt(terms) +
                     (problem_.dtype == DType::f32 ? 0 : verify::unit_roundoff(problem_.dtype)));
    const bool ok = row.error <= row.tolerance;
    char text[96];
    std::snprintf(text, sizeof text, "  steps: relative error %.2g, %.2g allowed%s", row.error,
                  row.tolerance, ok ? "" : ": WRONG");
    run_.say(text);
    run_.report.wrong += ok ? 0 : 1;
    return ok;
  }

  const BenchRun& run_;
  const BenchShape& shape_;
  Problem problem_;
  std::int64_t block_;
  MixingMatrix mixing_;
  Piece prompt_, steps_;
  State state_;
};

}  // namespace

void bench_decode(const BenchRun& run, const BenchShape& shape) {
  for (const DType dtype : run.dtypes) {
    run.say(shape.name + " " + name(dtype));
    Decode(run, shape, dtype).run();
  }
}

}  // namespace mhla::cli
