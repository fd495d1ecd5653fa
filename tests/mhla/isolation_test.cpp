// What a computation must not touch may hold NaN: other packed sequences, weights nobody reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "mhla/mhla.h"
#include "support/tensors.h"

namespace mhla {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kHeads = 2, kDk = 6, kDv = 5;

// One f32 self-attention call, forward and backward; outputs start as NaN.
struct Trial {
  Problem problem;
  std::int64_t tokens, rows;
  std::vector<float> q, k, v, d_o, mixing;
  std::vector<float> o, d_q, d_k, d_v, d_mixing;

  Trial(const Problem& p, std::int64_t spare_rows)
      : problem(p), tokens(p.layout.tokens()), rows(p.layout.mixing_size() + spare_rows) {
    std::uint64_t seed = 1;
    const auto fill = [&](std::int64_t count) {
      const auto values = test::random_values(static_cast<std::size_t>(count), seed++, 0.1, 1);
      return std::vector<float>(values.begin(), values.end());
    };
    q = fill(tokens * kHeads * kDk), k = fill(tokens * kHeads * kDk);
    v = fill(tokens * kHeads * kDv), d_o = fill(tokens * kHeads * kDv);
    mixing = fill(rows * rows);
    const auto poison = [](const std::vector<float>& like) {
      return std::vector<float>(like.size(), kNaN);
    };
    o = poison(v), d_q = poison(q), d_k = poison(k), d_v = poison(v), d_mixing = poison(mixing);
  }

  void compute(const std::string& implementation) {
    const auto view = [&](std::vector<float>& x, std::int64_t width) {
      return TensorView::of(x.data(), {1, tokens, kHeads, width});
    };
    const TensorView m = TensorView::of(mixing.data(), {rows, rows});
    const Plan plan = mhla::plan(problem, {.implementation = implementation});
    forward(plan, {.q = view(q, kDk), .k = view(k, kDk), .v = view(v, kDv), .mixing = m},
            {.o = view(o, kDv)});
    backward(plan,
             {.q = view(q, kDk),
              .k = view(k, kDk),
              .v = view(v, kDv),
              .mixing = m,
              .o = view(o, kDv),
              .d_o = view(d_o, kDv)},
             {.d_q = view(d_q, kDk),
              .d_k = view(d_k, kDk),
              .d_v = view(d_v, kDv),
              .d_mixing = TensorView::of(d_mixing.data(), {rows, rows})});
  }
};

// Calls f for every form on every implementation that serves it here.
void for_every_form(const BlockLayout& layout,
                    const std::function<void(const Problem&, const std::string&)>& f) {
  for (const Mask mask : {Mask::none, Mask::causal, Mask::block_causal}) {
    for (const Normalizer normalizer :
         {Normalizer::exact, Normalizer::shared_position, Normalizer::none}) {
      const Problem problem{.heads = kHeads,
                            .dk = kDk,
                            .dv = kDv,
                            .layout = layout,
                            .mask = mask,
                            .normalizer = normalizer};
      const Plan all = plan(problem);
      for (const Candidate& candidate : all.candidates()) {
        if (candidate.predicted_seconds == 0) continue;  // refused
        SCOPED_TRACE(candidate.implementation + ": " + problem.to_string());
        f(problem, candidate.implementation);
      }
    }
  }
}

void expect_finite(const std::vector<float>& values, std::int64_t first, std::int64_t end,
                   const char* name) {
  for (std::int64_t i = first; i < end; ++i) {
    ASSERT_TRUE(std::isfinite(values[static_cast<std::size_t>(i)])) << name << " at " << i;
  }
}

TEST(Isolation, NaNInOnePackedSequenceStaysThere) {
  const std::vector<std::int64_t> offsets{0, 7, 7, 20, 30};
  const auto layout = BlockLayout::packed(offsets, {.block = {4}});
  for_every_form(layout, [&](const Problem& problem, const std::string& implementation) {
    Trial trial(problem, 0);
    const std::int64_t first = offsets[2], end = offsets[3];
    for (std::vector<float>* x : {&trial.q, &trial.k, &trial.v, &trial.d_o}) {
      const std::int64_t width = static_cast<std::int64_t>(x->size()) / trial.tokens;
      std::fill(x->begin() + first * width, x->begin() + end * width, kNaN);
    }
    trial.compute(implementation);
    for (const auto& [x, name] : {std::pair{&trial.o, "o"}, std::pair{&trial.d_q, "d_q"},
                                  std::pair{&trial.d_k, "d_k"}, std::pair{&trial.d_v, "d_v"}}) {
      const std::int64_t width = static_cast<std::int64_t>(x->size()) / trial.tokens;
      expect_finite(*x, 0, first * width, name);
      expect_finite(*x, end * width, trial.tokens * width, name);
    }
    EXPECT_TRUE(std::isnan(trial.o[static_cast<std::size_t>(first * kHeads * kDv)]));
  });
}

TEST(Isolation, WeightsThatNobodyReadsMayBeNaNAndHaveAZeroGradient) {
  const auto layout = BlockLayout::sequence(37, {.block = {8}});
  for_every_form(layout, [&](const Problem& problem, const std::string& implementation) {
    Trial trial(problem, 2);
    const std::int64_t blocks = layout.mixing_size();
    const auto is_read = [&](std::int64_t i, std::int64_t b) {
      return i < blocks && b < blocks && (problem.mask == Mask::none || b <= i);
    };
    for (std::int64_t at = 0; at < trial.rows * trial.rows; ++at) {
      if (!is_read(at / trial.rows, at % trial.rows))
        trial.mixing[static_cast<std::size_t>(at)] = kNaN;
    }
    trial.compute(implementation);
    for (const auto& [x, name] :
         {std::pair{&trial.o, "o"}, std::pair{&trial.d_q, "d_q"}, std::pair{&trial.d_k, "d_k"},
          std::pair{&trial.d_v, "d_v"}, std::pair{&trial.d_mixing, "d_mixing"}}) {
      expect_finite(*x, 0, static_cast<std::int64_t>(x->size()), name);
    }
    for (std::int64_t at = 0; at < trial.rows * trial.rows; ++at) {
      if (is_read(at / trial.rows, at % trial.rows)) continue;
      EXPECT_EQ(trial.d_mixing[static_cast<std::size_t>(at)], 0) << at;
    }
  });
}

}  // namespace
}  // namespace mhla
