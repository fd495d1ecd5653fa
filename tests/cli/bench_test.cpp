// `mhla bench` from outside, and that its check notices wrong results. Nothing depends on timing.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/bench_check.h"
#include "cli/bench_report.h"
#include "cli/bench_shapes.h"
#include "cli/bench_timing.h"
#include "cli/program_fixture.h"

namespace mhla::cli {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

using mhla::test::Result;

class Bench : public mhla::test::ProgramTest {
 protected:
  Result run(const std::string& arguments, const fs::path& which = MHLA_PROGRAM) const {
    return shell("cd '" + path("") + "' && '" + which.string() + "' bench " + arguments);
  }
};

bool has_torch() {
  return fs::exists(fs::path(MHLA_PROGRAM).parent_path() / "mhla_bench_torch.so");
}

void expect_row(const json& row) {
  for (const char* key :
       {"shape", "what", "dtype", "ms", "gflops", "baselines", "ratio", "error"}) {
    EXPECT_TRUE(row.contains(key)) << key;
  }
  EXPECT_GT(row.at("ms").get<double>(), 0);
  for (const auto& [family, ms] : row.at("baselines").items()) {
    EXPECT_GT(ms.get<double>(), 0) << family;
    EXPECT_GT(row.at("ratio").at(family).get<double>(), 0) << family;
  }
}

TEST_F(Bench, JsonHasTheDocumentedKeys) {
  const Result r = run("cpu --shape tiny tiny-video --seconds 0 --json");
  ASSERT_EQ(r.code, 0) << r.err;
  const json document = json::parse(r.out);
  EXPECT_FALSE(document.at("machine").get<std::string>().empty());
  ASSERT_EQ(document.at("rows").size(), 8u);  // two shapes, f32 and bf16, with and without backward
  for (const json& row : document.at("rows")) {
    expect_row(row);
    EXPECT_TRUE(row.at("baselines").empty());
    EXPECT_LE(row.at("error").get<double>(), row.at("tolerance").get<double>());
  }
  EXPECT_EQ(document.at("rows")[0].at("what"), "forward");
  EXPECT_EQ(document.at("rows")[1].at("what"), "forward+backward");
}

TEST_F(Bench, MeasuresOnlyWhatWasAskedFor) {
  const Result r = run(
      "cpu --shape tiny --dtype f16 --what backward --threads 1 --seconds 0 --json");
  ASSERT_EQ(r.code, 0) << r.err;
  const json rows = json::parse(r.out).at("rows");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].at("what"), "forward+backward");
  EXPECT_EQ(rows[0].at("dtype"), "f16");
  EXPECT_TRUE(rows[0].at("thread_speedup").is_null());
}

TEST_F(Bench, DecodeIsMeasuredAtBothPositions) {
  const Result r = run("cpu --shape tiny-decode --dtype f32 --seconds 0 --json");
  ASSERT_EQ(r.code, 0) << r.err;
  const json rows = json::parse(r.out).at("rows");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].at("tokens"), 64);
  EXPECT_EQ(rows[1].at("tokens"), 256);
  for (const json& row : rows) {
    EXPECT_EQ(row.at("what"), "decode");
    EXPECT_GT(row.at("block_mean_ms").get<double>(), 0);
  }
}

TEST_F(Bench, PrintsATableForPeople) {
  const Result r = run("cpu --shape tiny tiny-decode --dtype f32 --seconds 0");
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* part : {"GFLOP/s", "tiny", "forward+backward", "after tokens", "tiny-decode"}) {
    EXPECT_NE(r.out.find(part), std::string::npos) << part << "\n" << r.out;
  }
}

TEST_F(Bench, NamesTheNearestKnownWord) {
  const auto expect_usage = [&](const std::string& arguments, const std::string& part) {
    const Result r = run(arguments);
    EXPECT_EQ(r.code, 2) << arguments;
    EXPECT_EQ(r.out, "");
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  };
  expect_usage("cpu --shape wna", "did you mean 'wan'?");
  expect_usage("cpu --shape nothing-like-it", "dit-s-4096");
  expect_usage("cpu --what forwrd", "did you mean 'forward'?");
  expect_usage("cpu --dtype f64", "f32");
  expect_usage("cpu --compare jax", "torch");
  expect_usage("cqu", "did you mean 'cpu'?");
  expect_usage("cpu --shape tiny --implementation refrence", "'reference'");
}

TEST_F(Bench, WithoutLibTorchTheErrorSaysHowToGetIt) {
  const fs::path alone = path("mhla");  // the module is found beside the program only
  fs::copy_file(MHLA_PROGRAM, alone);
  const Result r = run("cpu --compare torch --shape tiny", alone);
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(r.out, "");
  EXPECT_NE(r.err.find("-DMHLA_TORCH=ON"), std::string::npos) << r.err;
}

TEST_F(Bench, CudaOutsideASourceTreeSaysWhereTheScriptIs) {
  const fs::path alone = path("mhla");
  fs::copy_file(MHLA_PROGRAM, alone);
  const Result r = run("cuda", alone);
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("bench/cuda.py"), std::string::npos) << r.err;
  const Result flag = run("cuda --dtype f16", alone);
  EXPECT_EQ(flag.code, 2) << "a flag that the script would not see";
  EXPECT_NE(flag.err.find("--dtype"), std::string::npos) << flag.err;
}

TEST_F(Bench, ComparesWithLibTorchWhereItIsBuilt) {
  if (!has_torch()) GTEST_SKIP() << "built without LibTorch";
  const Result r = run(
      "cpu --compare torch --shape tiny tiny-video tiny-lm tiny-decode "
      "--threads 1 --seconds 0 --json");
  ASSERT_EQ(r.code, 0) << r.err;
  const json document = json::parse(r.out);
  EXPECT_GT(document.at("gemm_gflops").at("f32").get<double>(), 0);
  for (const json& row : document.at("rows")) {
    expect_row(row);
    EXPECT_TRUE(row.at("baselines").contains("composed")) << row;
    EXPECT_TRUE(row.at("baselines").contains("softmax")) << row;
  }
}

// The check itself: right results pass, one wrong tensor does not.
class BenchCheck : public testing::TestWithParam<const char*> {
 protected:
  BenchCheck()
      : shape_(select_shapes({GetParam()}).front()),
        data_(shape_.problem, shape_.fused),
        truth_(make_truth(shape_.problem, data_, true)),
        plan_(plan(shape_.problem)) {
    forward(plan_, data_.inputs(), data_.outputs());
    backward(plan_, data_.backward_inputs(), data_.gradients());
  }
  void expect_seen(const TensorView& tensor, const char* name) {
    float* value = static_cast<float*>(tensor.data) + (tensor.shape[0] - 1) * tensor.strides[0] +
                   (tensor.shape[2] - 1) * tensor.strides[2];
    const float kept = *value;
    for (const float wrong : {kept + 1, std::nanf("")}) {
      *value = wrong;
      const BenchAgreement agreement = check_results(truth_, data_);
      EXPECT_FALSE(agreement.ok()) << name;
      EXPECT_EQ(agreement.tensor, name);
    }
    *value = kept;
  }

  BenchShape shape_;
  BenchData data_;
  BenchTruth truth_;
  Plan plan_;
};

TEST_P(BenchCheck, PassesRightResults) {
  EXPECT_TRUE(check_results(truth_, data_).ok());
  EXPECT_TRUE(check_mixing_gradient(truth_, plan_, data_).ok());
}

TEST_P(BenchCheck, NoticesOneWrongTensor) {
  expect_seen(data_.o, "o");
  expect_seen(data_.d_q, "d_q");
  expect_seen(data_.d_k, "d_k");
  expect_seen(data_.d_v, "d_v");
  truth_.d_mixing[0] += 100;
  EXPECT_FALSE(check_mixing_gradient(truth_, plan_, data_).ok());
}

TEST_P(BenchCheck, UnwrittenOutputsAreWrong) {
  data_.poison_outputs();
  EXPECT_FALSE(check_results(truth_, data_).ok());
}

INSTANTIATE_TEST_SUITE_P(Shapes, BenchCheck, testing::Values("tiny", "tiny-video", "tiny-lm"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(BenchCheckOfLongSequences, LooksOnlyAtThePrefixThatTheLaterTokensCannotChange) {
  Problem problem = select_shapes({"tiny-lm"}).front().problem;
  problem.heads = 1;
  problem.dk = problem.dv = 4;
  problem.layout = BlockLayout::sequence(4096 + 128, {.block = {64}});
  BenchData data(problem, false);
  const BenchTruth truth = make_truth(problem, data, true);
  EXPECT_EQ(truth.problem.layout.tokens(), 4096);
  forward(plan(problem), data.inputs(), data.outputs());
  backward(plan(problem), data.backward_inputs(), data.gradients());
  EXPECT_TRUE(check_results(truth, data).ok());
}

TEST(BenchTiming, MedianIsTheMiddle) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median({7}), 7);
}

TEST(BenchGoals, TheWorstRowCounts) {
  BenchReport report;
  for (const double composed : {30.0, 15.0}) {
    BenchRow row{.shape = composed > 20 ? "wan" : "vlt", .what = "forward", .implementation = "x"};
    row.ms = 10;
    row.baselines["composed"].ms = composed;
    report.rows.push_back(row);
  }
  const std::vector<Goal> all = goals(report);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_DOUBLE_EQ(all[0].reached, 1.5);
  EXPECT_EQ(all[0].where, "vlt f32");
  EXPECT_FALSE(all[0].met());
}

}  // namespace
}  // namespace mhla::cli
