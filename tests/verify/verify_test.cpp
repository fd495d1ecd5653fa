// The verifier passes what is right and notices each kind of wrong.
#include "mhla/verify/verify.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <set>

#include "mhla/verify/rounding.h"

namespace mhla::verify {
namespace {

TEST(Cases, AreAtLeastTwoHundredWithNamesAndSeedsOfTheirOwn) {
  std::set<std::string> names;
  std::set<std::uint64_t> seeds;
  const std::vector<Case> all = cases();
  std::size_t light = 0;
  for (const Case& c : all) {
    EXPECT_TRUE(names.insert(c.name).second) << c.name;
    EXPECT_TRUE(seeds.insert(c.seed).second) << c.name;
    EXPECT_NO_THROW(check(c.problem)) << c.name;
    if (!c.heavy) ++light;
  }
  EXPECT_GE(light, 200u);
}

TEST(Cases, CombineEveryMaskNormalizerMapAndDtype) {
  std::set<std::string> combinations;
  for (const Case& c : cases()) {
    if (c.heavy) continue;
    const Problem& p = c.problem;
    combinations.insert(std::string(name(p.mask)) + name(p.normalizer) + name(p.feature_map) +
                        name(p.dtype));
  }
  EXPECT_EQ(combinations.size(), 3u * 3 * 4 * 4);
}

TEST(Cases, ComeOutTheSameEveryTime) {
  const std::vector<Case> all = cases();
  EXPECT_EQ(make_inputs(all[3]).q, make_inputs(cases()[3]).q);
  EXPECT_NE(make_inputs(all[3]).q, make_inputs(all[4]).q);
}

TEST(Verify, PassesEveryImplementationOfThisMachine) {
  const Report report = verify({});
  EXPECT_GE(report.cases, 200u);
  EXPECT_EQ(report.failed, 0u);
  for (const Failure& f : report.failures) {
    ADD_FAILURE() << f.name << " on " << f.implementation << ": " << f.reason;
  }
  std::set<std::string> forms;
  for (const FormResult& f : report.forms) forms.insert(f.form);
  for (const char* form :
       {"none/exact", "causal/none", "block_causal/shared_position", "varlen/causal", "cross/exact",
        "separate/exact", "streaming/causal", "streaming/block_causal"}) {
    EXPECT_TRUE(forms.count(form)) << form;
  }
}

TEST(Verify, RefusesAnUnknownImplementation) {
  Options options;
  for (const char* name : {"no.such", "ference", "reference, "}) {
    options.implementation = name;
    EXPECT_THROW(verify(options), Error) << name;
  }
}

TEST(Verify, StartsNoMoreThreadsThanThereAreCases) {
  Options options;
  options.implementation = "reference";
  options.filter = "one-block/f64";
  options.threads = 100'000;  // far more than a process may have
  const Report report = verify(options);
  EXPECT_GT(report.cases, 0U);
  EXPECT_EQ(report.failed, 0U);
}

TEST(Verify, TriesAsManyValuesOfACaseAsAskedFor) {
  Options options;
  options.implementation = "reference";
  options.filter = "causal/none/elu1/sequence/bf16";
  const Report once = verify(options);
  ASSERT_GT(once.runs, 0U);
  options.seeds = 3;
  const Report report = verify(options);
  EXPECT_EQ(report.cases, once.cases);
  EXPECT_EQ(report.runs, 3 * once.runs);
  EXPECT_EQ(report.failed, 0U);
  // Three different values have three different errors, so that their mean is below the worst.
  EXPECT_GT(report.forms[0].ratio, report.forms[0].mean_ratio);
  EXPECT_EQ(once.forms[0].ratio, once.forms[0].mean_ratio);
}

TEST(Verify, ASeedComesBeforeThatOfTheCase) {
  const Case c = cases()[3];
  Options options;
  EXPECT_EQ(seeds_of(c, options), std::vector<std::uint64_t>{c.seed});
  options.seed = 7;
  options.seeds = 3;
  const std::vector<std::uint64_t> seeds = seeds_of(c, options);
  EXPECT_EQ(seeds.size(), 3U);
  EXPECT_EQ(seeds[0], 7U);
  EXPECT_EQ(std::set<std::uint64_t>(seeds.begin(), seeds.end()).size(), 3U);
  EXPECT_EQ(seeds_of(c, options), seeds);
}

// The reference with something done to it after each forward or backward.
using AfterForward =
    std::function<void(const Plan&, const ForwardInputs&, const ForwardOutputs&, const Workspace&)>;
using AfterBackward = std::function<void(const Plan&, const BackwardInputs&, const BackwardOutputs&,
                                         const Workspace&)>;
Subject spoiled(AfterForward after_forward, AfterBackward after_backward = {}) {
  Subject s = subject("reference");
  const auto forward = s.forward;
  const auto backward = s.backward;
  s.name = "spoiled";
  s.forward = [=](const Plan& plan, const ForwardInputs& in, const ForwardOutputs& out,
                  const Workspace& workspace) {
    forward(plan, in, out, workspace);
    if (after_forward) after_forward(plan, in, out, workspace);
  };
  s.backward = [=](const Plan& plan, const BackwardInputs& in, const BackwardOutputs& out,
                   const Workspace& workspace) {
    backward(plan, in, out, workspace);
    if (after_backward) after_backward(plan, in, out, workspace);
  };
  return s;
}

Report report_on(const Subject& s, const std::string& filter) {
  Options options;
  options.filter = filter;
  return verify(options, {s});
}

void expect_all_fail(const Subject& s, const std::string& filter, const std::string& reason) {
  const Report report = report_on(s, filter);
  ASSERT_GT(report.runs, 0u);
  EXPECT_EQ(report.failed, report.runs);
  for (const Failure& f : report.failures) {
    EXPECT_NE(f.reason.find(reason), std::string::npos) << f.name << ": " << f.reason;
  }
}

void multiply(const TensorView& view, double factor) {  // its first element
  store(view.dtype, round_to(view.dtype, load(view.dtype, view.data) * factor), view.data);
}

TEST(Verify, AFailureNamesTheSeedOfItsValues) {
  const auto nudge = [](const Plan&, const ForwardInputs&, const ForwardOutputs& out,
                        const Workspace&) { multiply(out.o, 2); };
  Options options;
  options.filter = "none/exact/elu1/sequence/f64";
  options.seeds = 2;
  const Report report = verify(options, {spoiled(nudge)});
  const std::vector<std::uint64_t> seeds = seeds_of(selected_cases(options).at(0), options);
  ASSERT_EQ(report.failures.size(), 2U);
  EXPECT_EQ((std::set{report.failures[0].seed, report.failures[1].seed}),
            std::set(seeds.begin(), seeds.end()));
}

constexpr const char* kFew = "none/exact/elu1/sequence/";  // no output is zero

TEST(Verify, TheReferencePassesWhenNothingIsSpoiled) {
  const Report report = report_on(spoiled({}), kFew);
  EXPECT_GT(report.runs, 0u);
  EXPECT_EQ(report.failed, 0u);
}

TEST(Verify, NoticesAnErrorInOneElementOfTheOutput) {
  const auto nudge = [](const Plan& plan, const ForwardInputs&, const ForwardOutputs& out,
                        const Workspace&) {
    multiply(out.o, 1 + 200 * unit_roundoff(plan.problem().dtype));
  };
  expect_all_fail(spoiled(nudge), "none/exact/elu1/sequence/f64", "o is off");
}

TEST(Verify, NoticesAnErrorInEachGradient) {
  const std::pair<const char*, TensorView BackwardOutputs::*> gradients[] = {
      {"d_q", &BackwardOutputs::d_q},
      {"d_k", &BackwardOutputs::d_k},
      {"d_v", &BackwardOutputs::d_v},
      {"d_mixing", &BackwardOutputs::d_mixing}};
  for (const auto& [label, member] : gradients) {
    const auto which = member;
    const auto nudge = [which](const Plan&, const BackwardInputs&, const BackwardOutputs& out,
                               const Workspace&) {
      if ((out.*which).defined()) multiply(out.*which, 1.001);
    };
    const Report report = report_on(spoiled({}, nudge), "causal/none/elu1/sequence/f64");
    ASSERT_GT(report.failed, 0u) << label;
    EXPECT_EQ(report.failures[0].reason, std::string(label) + " is off");
  }
}

TEST(Verify, ASubjectWithoutABackwardIsJudgedByItsOutput) {
  Subject right = subject("reference");
  right.backward = nullptr;
  EXPECT_EQ(report_on(right, kFew).failed, 0u);
  Subject wrong = spoiled([](const Plan&, const ForwardInputs&, const ForwardOutputs& out,
                             const Workspace&) { multiply(out.o, 2); });
  wrong.backward = nullptr;
  expect_all_fail(wrong, "none/exact/elu1/sequence/f64", "o is off");
}

TEST(Verify, EveryImplementationIsTriedWithItsBackward) {
  for (const std::string& name : implementations()) {
    for (const Subject& s : subjects(name)) EXPECT_TRUE(s.backward) << s.name;
  }
}

TEST(Verify, NoticesAGradientThatWasNeverWritten) {
  Subject s = subject("reference");
  const auto backward = s.backward;
  s.backward = [=](const Plan& plan, const BackwardInputs& in, BackwardOutputs out,
                   const Workspace& workspace) {
    out.d_k = {};
    backward(plan, in, out, workspace);
  };
  expect_all_fail(s, kFew, "d_k is off");
}

TEST(Verify, NoticesAWriteOutsideTheTensor) {
  const auto overrun = [](const Plan&, const ForwardInputs&, const ForwardOutputs& out,
                          const Workspace&) { static_cast<std::uint8_t*>(out.o.data)[-1] = 0; };
  expect_all_fail(spoiled(overrun), kFew, "outside the outputs");
}

TEST(Verify, NoticesAChangedInput) {
  const auto spoil = [](const Plan&, const BackwardInputs& in, const BackwardOutputs&,
                        const Workspace&) { multiply(in.q, 2); };
  expect_all_fail(spoiled({}, spoil), kFew, "an input was changed");
}

TEST(Verify, NoticesAnOverrunWorkspace) {
  const auto overrun = [](const Plan&, const ForwardInputs&, const ForwardOutputs&,
                          const Workspace& workspace) {
    static_cast<std::uint8_t*>(workspace.data)[workspace.bytes] = 0;
  };
  expect_all_fail(spoiled(overrun), kFew, "workspace");
}

TEST(Verify, NoticesResultsThatDifferFromRunToRun) {
  std::atomic<int> runs = 0;
  const auto wobble = [&runs](const Plan& plan, const ForwardInputs&, const ForwardOutputs& out,
                              const Workspace&) {
    if (runs++ % 2 == 1) multiply(out.o, 1 + 2 * unit_roundoff(plan.problem().dtype));
  };
  Options options;
  options.filter = kFew;
  options.threads = 1;
  const Report report = verify(options, {spoiled(wobble)});
  ASSERT_GT(report.runs, 0u);
  EXPECT_EQ(report.failed, report.runs);
}

TEST(Verify, NoticesASystematicLowPrecisionErrorOfThreeUlps) {
  const auto bias = [](const Plan& plan, const ForwardInputs&, const ForwardOutputs& out,
                       const Workspace&) {
    if (plan.problem().dtype != DType::bf16) return;
    const TensorView& o = out.o;
    for (std::int64_t b = 0; b < o.shape[0]; ++b) {
      for (std::int64_t n = 0; n < o.shape[1]; ++n) {
        for (std::int64_t h = 0; h < o.shape[2]; ++h) {
          for (std::int64_t d = 0; d < o.shape[3]; ++d) {
            TensorView element = o;
            const std::int64_t at = b * o.strides[0] + n * o.strides[1] + h * o.strides[2] + d;
            element.data = static_cast<std::uint16_t*>(o.data) + at;
            multiply(element, 1 + 3 * 0x1p-7);
          }
        }
      }
    }
  };
  expect_all_fail(spoiled(bias), "none/exact/elu1/one-block/bf16", "o is off");
}

TEST(Verify, AnExceptionIsAFailureOfTheCase) {
  const auto explode = [](const Plan&, const ForwardInputs&, const ForwardOutputs&,
                          const Workspace&) { throw std::runtime_error("out of luck"); };
  expect_all_fail(spoiled(explode), kFew, "out of luck");
}

}  // namespace
}  // namespace mhla::verify
