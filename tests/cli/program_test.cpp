// The program from outside: exit codes, streams, JSON, help, hints, pictures, completion.
#include <png.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/program_fixture.h"
#include "mhla/problem.h"
#include "mhla/version.h"

namespace {

using nlohmann::json;

using mhla::test::Result;

class Program : public mhla::test::ProgramTest {
 protected:
  Result run(const std::string& arguments) const { return program(arguments); }
};

const char* const kCommands[] = {"info",    "explain", "verify", "mixing",    "bench",
                                 "compare", "convert", "data",   "completion"};

void expect_usage_error(const Result& r, const std::string& part) {
  EXPECT_EQ(r.code, 2);
  EXPECT_EQ(r.out, "");
  EXPECT_EQ(r.err.rfind("mhla: error: ", 0), 0u) << r.err;
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
}

TEST_F(Program, PrintsHelpForItselfAndEveryCommand) {
  const Result top = run("--help");
  EXPECT_EQ(top.code, 0);
  EXPECT_EQ(top.err, "");
  for (const char* command : kCommands) {
    EXPECT_NE(top.out.find(command), std::string::npos) << command;
    const Result r = run(std::string(command) + " --help");
    EXPECT_EQ(r.code, 0) << command;
    EXPECT_NE(r.out.find("Usage: mhla " + std::string(command)), std::string::npos) << r.out;
  }
}

TEST_F(Program, PrintsItsVersion) {
  const Result r = run("--version");
  EXPECT_EQ(r.code, 0);
  EXPECT_EQ(r.out, std::string("mhla ") + mhla::version() + "\n");
}

TEST_F(Program, NamesTheNearestCommandAndFlag) {
  expect_usage_error(run("verfy"), "unknown command 'verfy' (did you mean 'verify'?)");
  expect_usage_error(run("verify --jsn"), "(did you mean '--json'?)");
  expect_usage_error(run("explain --gird 3x3"), "(did you mean '--grid'?)");
  expect_usage_error(run("explain --gird=3x3"), "unknown flag '--gird'");
  expect_usage_error(run("explain sequence=8 block=4 feature_mop=relu"), "'feature_map'");
  expect_usage_error(run("explain --sequence 8 --block 4 --implementation refrence"),
                     "'reference'");
}

TEST_F(Program, BadValuesAreUsageErrorsOfOneLine) {
  expect_usage_error(run(""), "subcommand");
  expect_usage_error(run("explain"), "--grid 32x32");
  expect_usage_error(run("explain --grid"), "--grid");
  expect_usage_error(run("explain --grid 0x4 --block 2x2"), "grid");
  expect_usage_error(run("explain --sequence 8 --block 4 --mask causl"), "causal");
  expect_usage_error(run("explain --sequence '8 heads=2' --block 4"), "sequence");
  expect_usage_error(run("explain --sequence 8 --block 4 --block 2"), "block");
  expect_usage_error(run("mixing --grid 8x8"), "blocks");
  expect_usage_error(run("mixing --grid 8x8 --blocks 2x2 --init nonsense"), "locality");
  expect_usage_error(run("verify --filter no-such-case"), "--list");
  expect_usage_error(run("verify --implementation no.such"), "reference");
  expect_usage_error(run("verify --seeds 0"), "--seeds: expected 1 or more, got 0");
  expect_usage_error(run("verify --threads -1"), "--threads: expected 0 or more, got -1 (");
  expect_usage_error(run("explain --sequence '' --block 4"), "sequence: expected N[+...], got ''");
  expect_usage_error(run("explain --sequence 8 --block 4 --threads 1000000000"), "0 to 1024");
  expect_usage_error(run("mixing --sequence 30000 --block 1 --out x.png"), "not be readable");
  expect_usage_error(run("mixing --grid 8x8 --blocks 2x2 --out x.gif"), ".png");
  expect_usage_error(run("completion tcsh"), "bash");
  expect_usage_error(run("info file extra"), "extra");
}

TEST_F(Program, FailuresAtRunTimeExitWithOne) {
  const Result device = run("explain --sequence 8 --block 4 --device cuda:77");
  EXPECT_EQ(device.code, 1);
  EXPECT_EQ(device.err.rfind("mhla: error: ", 0), 0u) << device.err;
  const Result file = run("mixing --grid 8x8 --blocks 2x2 --out " + path("no/such/folder.png"));
  EXPECT_EQ(file.code, 1);
  // What is there and cannot be written stays.
  std::filesystem::create_symlink("/dev/full", path("full.png"));
  EXPECT_EQ(run("mixing --grid 8x8 --blocks 2x2 --out " + path("full.png")).code, 1);
  EXPECT_TRUE(std::filesystem::is_symlink(path("full.png")));
  EXPECT_EQ(
      shell(std::string("'") + MHLA_PROGRAM + "' info >/dev/full 2>/dev/null; exit $? #").code, 1);
}

TEST_F(Program, ExplainHasAFlagForEveryFieldOfAProblem) {
  const std::string help = run("explain --help").out;
  for (const mhla::ProblemField& field : mhla::problem_fields()) {
    EXPECT_NE(help.find("--" + std::string(field.key) + " " + field.values), std::string::npos)
        << field.key;
  }
}

TEST_F(Program, ExplainUnderstandsFlagsAndWordsAlike) {
  const Result flags = run(
      "explain --grid 14x14 --block 4x4 --heads 6 --dk 64 --mask block-causal");
  expect_usage_error(flags, "block_causal");  // values keep their one spelling
  const Result a = run("explain --grid 14x14 --block 4x4 --heads 6 --dk 64 --feature-map relu");
  const Result b = run("explain grid=14x14 block=4x4 heads=6 dk=64 feature_map=relu");
  EXPECT_EQ(a.code, 0) << a.err;
  EXPECT_EQ(a.out, b.out);
  EXPECT_NE(a.out.find("196 tokens in 16 blocks"), std::string::npos) << a.out;
}

TEST_F(Program, ExplainJsonNamesTheChosenImplementation) {
  const Result r = run("explain --sequence 100 --block 32 --separate-denominator --json");
  ASSERT_EQ(r.code, 0) << r.err;
  const json document = json::parse(r.out);
  EXPECT_FALSE(document.at("implementation").get<std::string>().empty());
  EXPECT_NE(document.at("problem").get<std::string>().find("separate_denominator=true"),
            std::string::npos);
  EXPECT_GT(document.at("forward").at("flops").get<double>(), 0);
}

TEST_F(Program, PrintsWhatACheckpointHolds) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}})";
  const std::uint64_t length = header.size();
  std::ofstream(path("m.safetensors"), std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&length), sizeof length) << header
      << std::string(12, 'x');
  const Result text = run("info " + path("m.safetensors"));
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("w       bf16   [2, 3]  12"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("  format  pt"), std::string::npos) << text.out;
  const json document = json::parse(run("info --json " + path("m.safetensors")).out);
  EXPECT_EQ(document["elements"], 6);
  EXPECT_EQ(document["tensors"][0]["shape"], json({2, 3}));
  EXPECT_EQ(document["metadata"]["format"], "pt");
  const Result none = run("info " + path("none.pth"));
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.err.find("No such file"), std::string::npos) << none.err;
  std::filesystem::resize_file(path("m.safetensors"), 50);
  const Result cut = run("info " + path("m.safetensors"));
  EXPECT_EQ(cut.code, 1);
  EXPECT_NE(cut.err.find("truncated"), std::string::npos) << cut.err;
}

TEST_F(Program, InfoListsImplementationsAndWhatTheyServe) {
  const Result text = run("info");
  EXPECT_EQ(text.code, 0);
  EXPECT_NE(text.out.find("reference"), std::string::npos);
  const json document = json::parse(run("info --json").out);
  EXPECT_EQ(document.at("version"), mhla::version());
  for (const json& row : document.at("support")) {
    const std::vector<std::string> served = row.at("served_by");
    EXPECT_NE(std::find(served.begin(), served.end(), "reference"), served.end()) << row;
  }
}

TEST_F(Program, VerifyPassesAndReportsItsForms) {
  const Result r = run("verify --json --filter cross");
  ASSERT_EQ(r.code, 0) << r.out;
  EXPECT_EQ(r.err, "");  // progress only on a terminal
  const json document = json::parse(r.out);
  EXPECT_GT(document.at("cases").get<int>(), 20);
  EXPECT_EQ(document.at("failed"), 0);
  ASSERT_FALSE(document.at("forms").empty());
  for (const json& form : document.at("forms")) {
    EXPECT_LE(form.at("worst_error").get<double>(), form.at("tolerance").get<double>()) << form;
  }
  const Result sweep = run("verify --json --filter cross --seeds 2 --seed 5");
  EXPECT_EQ(json::parse(sweep.out).at("runs"), 2 * document.at("runs").get<int>());
  const Result table = run("verify --filter causal/exact/relu/sequence");
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.out.find("streaming/causal"), std::string::npos) << table.out;
}

TEST_F(Program, VerifyListsMoreThanTwoHundredCases) {
  const std::string names = run("verify --list").out;
  EXPECT_GE(std::count(names.begin(), names.end(), '\n'), 200);
}

TEST_F(Program, MixingWritesAPictureThatAPngReaderOpens) {
  for (const char* layout : {"--grid 20x20 --blocks 5x5", "--sequence 100 --block 9",
                             "--grid 21x30x50 --blocks 3x5x10", "--sequence 4 --block 4"}) {
    const std::string file = path("mixing.png");
    const Result r = run("mixing " + std::string(layout) + " --out " + file);
    ASSERT_EQ(r.code, 0) << r.err;
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    ASSERT_TRUE(png_image_begin_read_from_file(&image, file.c_str())) << image.message;
    EXPECT_GE(image.width, 600u);
    EXPECT_GE(image.height, 300u);
    image.format = PNG_FORMAT_RGB;
    std::vector<unsigned char> pixels(PNG_IMAGE_SIZE(image));
    ASSERT_TRUE(png_image_finish_read(&image, nullptr, pixels.data(), 0, nullptr)) << image.message;
    EXPECT_NE(std::count(pixels.begin(), pixels.end(), pixels[0]),
              static_cast<std::ptrdiff_t>(pixels.size()));
  }
}

TEST_F(Program, MixingJsonHoldsTheMatrixOfTheSpecification) {
  const Result r = run("mixing --grid 4x4 --blocks 4x4 --json");
  ASSERT_EQ(r.code, 0) << r.err;
  const json document = json::parse(r.out);
  EXPECT_EQ(document.at("rank"), 16);
  EXPECT_NEAR(document.at("matrix")[0][0].get<double>(), .144361, 5e-7);  // spec 1.6, paper row 0
  EXPECT_NEAR(document.at("row_sums").at("min").get<double>(), 1, 1e-6);
  const json uniform = json::parse(run("mixing --grid 4x4 --blocks 4x4 --init uniform --json").out);
  EXPECT_EQ(uniform.at("rank"), 1);
}

TEST_F(Program, BashCompletionOffersCommandsFlagsAndValues) {
  const auto complete = [&](const std::string& words, int at) {
    return shell("bash -c 'source <(\"" + std::string(MHLA_PROGRAM) +
                 "\" completion bash); COMP_WORDS=(" + words +
                 "); COMP_CWORD=" + std::to_string(at) + "; _mhla; echo ${COMPREPLY[@]}'")
        .out;
  };
  EXPECT_EQ(complete("mhla ver", 1), "verify\n");
  EXPECT_EQ(complete("mhla explain --feat", 2), "--feature_map\n");
  EXPECT_EQ(complete("mhla explain --mask ca", 3), "causal\n");
  EXPECT_EQ(complete("mhla completion z", 2), "zsh\n");
  EXPECT_EQ(complete("mhla convert a b --to d", 5), "diffusers\n");
}

TEST_F(Program, CompletionForEveryShellNamesEveryFlagOfTheProblem) {
  for (const char* shell_name : {"bash", "zsh", "fish"}) {
    const Result r = run(std::string("completion ") + shell_name);
    EXPECT_EQ(r.code, 0);
    for (const mhla::ProblemField& field : mhla::problem_fields()) {
      EXPECT_NE(r.out.find(field.key), std::string::npos) << shell_name << " " << field.key;
    }
  }
}

}  // namespace
