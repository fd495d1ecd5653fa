// Rounding between the floating types of files, and files written in another precision.
#include "io/precision.h"

#include <cmath>
#include <limits>

#include "io/files.h"
#include "io/safetensors.h"

namespace mhla::test {
namespace {

using io::ScalarType;

template <typename To, typename From>
To converted(From value, ScalarType from, ScalarType to) {
  To result{};
  io::convert_elements(&value, from, &result, to, 1);
  return result;
}

TEST(Precision, EverySixteenBitNumberSurvivesTheWayThroughF32AndF64) {
  for (const ScalarType type : {ScalarType::bf16, ScalarType::f16}) {
    for (const ScalarType wide : {ScalarType::f32, ScalarType::f64}) {
      for (unsigned bits = 0; bits < 0x10000; ++bits) {
        const auto value = static_cast<std::uint16_t>(bits);
        const bool nan = type == ScalarType::bf16 ? (bits & 0x7fff) > 0x7f80
                                                  : (bits & 0x7fff) > 0x7c00;
        double between = 0;
        io::convert_elements(&value, type, &between, wide, 1);
        std::uint16_t back = 0;
        io::convert_elements(&between, wide, &back, type, 1);
        if (nan) {
          EXPECT_GT(back & 0x7fff, type == ScalarType::bf16 ? 0x7f80 : 0x7c00) << bits;
        } else {
          ASSERT_EQ(back, value) << io::name(type) << " through " << io::name(wide);
        }
      }
    }
  }
}

TEST(Precision, RoundsToTheNearestEven) {
  const auto bf16 = [](float x) {
    return converted<std::uint16_t>(x, ScalarType::f32, ScalarType::bf16);
  };
  EXPECT_EQ(bf16(1.0f), 0x3f80);
  EXPECT_EQ(bf16(1.0f + 0x1p-8f), 0x3f80);             // half way: to even
  EXPECT_EQ(bf16(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);  // above
  EXPECT_EQ(bf16(1.0f + 3 * 0x1p-8f), 0x3f82);         // half way: to even, upwards
  EXPECT_EQ(bf16(-0.0f), 0x8000);
  const auto f16 = [](float x) {
    return converted<std::uint16_t>(x, ScalarType::f32, ScalarType::f16);
  };
  EXPECT_EQ(f16(1.0f + 0x1p-11f), 0x3c00);
  EXPECT_EQ(f16(0x1p-24f), 0x0001);
  EXPECT_EQ(f16(0x1p-26f), 0x0000);
}

TEST(Precision, ReadsEightBitFloats) {
  const auto e4m3 = [](std::uint8_t bits) {
    return converted<float>(bits, ScalarType::f8_e4m3, ScalarType::f32);
  };
  EXPECT_EQ(e4m3(0x38), 1.0f);
  EXPECT_EQ(e4m3(0x7e), 448.0f);
  EXPECT_EQ(e4m3(0x01), 0x1p-9f);
  EXPECT_EQ(e4m3(0xb8), -1.0f);
  EXPECT_TRUE(std::isnan(e4m3(0x7f)));
  const auto e5m2 = [](std::uint8_t bits) {
    return converted<float>(bits, ScalarType::f8_e5m2, ScalarType::f32);
  };
  EXPECT_EQ(e5m2(0x3c), 1.0f);
  EXPECT_EQ(e5m2(0x7b), 57344.0f);
  EXPECT_TRUE(std::isinf(e5m2(0x7c)));
}

TEST(Precision, CountsWhatNoLongerFits) {
  const float values[] = {1.0f, 65504.0f, 65520.0f, -1e30f, std::numeric_limits<float>::infinity()};
  std::uint16_t rounded[5];
  EXPECT_EQ(io::convert_elements(values, ScalarType::f32, rounded, ScalarType::f16, 5), 2u);
  const double large = 1e300;
  float narrow = 0;
  EXPECT_EQ(io::convert_elements(&large, ScalarType::f64, &narrow, ScalarType::f32, 1), 1u);
}

TEST(Precision, KnowsBothSpellings) {
  EXPECT_EQ(io::parse_precision("bf16"), ScalarType::bf16);
  EXPECT_EQ(io::parse_precision("float16"), ScalarType::f16);
  expect_error([] { io::parse_precision("i64"); }, ErrorCode::invalid_argument, {"'i64'", "bf16"});
}

class Converted : public IoTest {};

TEST_F(Converted, OnlyFloatingTensorsChangeAndStridesAreHonoured) {
  const float matrix[] = {1, 2, 3, 4, 5, 6};
  const std::int64_t number = 7;
  const std::vector<io::Tensor> tensors = {{.name = "t",
                                            .section = {},
                                            .type = ScalarType::f32,
                                            .shape = {3, 2},
                                            .strides = {1, 3},
                                            .data = reinterpret_cast<const char*>(matrix)},
                                           {.name = "n",
                                            .section = {},
                                            .type = ScalarType::i64,
                                            .shape = {},
                                            .strides = {},
                                            .data = reinterpret_cast<const char*>(&number)}};
  const io::Saved saved = io::write_safetensors(path("x.safetensors"), tensors,
                                                {.precision = ScalarType::bf16});
  EXPECT_EQ(saved.converted, 1u);
  EXPECT_EQ(saved.bytes, 12u + 8u);
  const io::Checkpoint file = io::Checkpoint::open(path("x.safetensors"));
  EXPECT_EQ(file.at("t").type, ScalarType::bf16);
  const std::vector<std::uint16_t> expected = {0x3f80, 0x4080, 0x4000, 0x40a0, 0x4040, 0x40c0};
  EXPECT_EQ(values<std::uint16_t>(file.at("t")), expected);  // 1 4 2 5 3 6
  EXPECT_EQ(values<std::int64_t>(file.at("n")), std::vector<std::int64_t>{7});
}

TEST_F(Converted, TensorsLargerThanAPieceAreWhole) {
  std::vector<float> numbers((1 << 20) + 77);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  const io::Tensor tensor{.name = "x",
                          .section = {},
                          .type = ScalarType::f32,
                          .shape = {static_cast<std::int64_t>(numbers.size())},
                          .strides = {1},
                          .data = reinterpret_cast<const char*>(numbers.data())};
  io::write_safetensors(path("x.safetensors"), {tensor}, {.precision = ScalarType::f64});
  const io::Checkpoint file = io::Checkpoint::open(path("x.safetensors"));
  const auto read = values<double>(file.at("x"));
  for (std::size_t i = 0; i < numbers.size(); ++i) ASSERT_EQ(read[i], static_cast<double>(i));
}

TEST_F(Converted, AFileThatIsBeingReadIsNotReplaced) {
  const float one = 1;
  const io::Tensor tensor{.name = "x",
                          .section = {},
                          .type = ScalarType::f32,
                          .shape = {1},
                          .strides = {1},
                          .data = reinterpret_cast<const char*>(&one)};
  const std::string file = path("x.safetensors");
  io::write_safetensors(file, {tensor});
  std::filesystem::create_symlink(file, path("link.safetensors"));
  for (const std::string& target : {file, folder_ + "/./x.safetensors", path("link.safetensors")}) {
    expect_error([&] { io::write_safetensors(target, {tensor}, {.keep = {file}}); },
                 ErrorCode::invalid_argument, {"being read"});
  }
  io::write_safetensors(path("y.safetensors"), {tensor}, {.keep = {file}});
}

TEST_F(Converted, ASplitCheckpointThatFailsLeavesNothing) {
  const float one = 1;
  std::vector<io::Tensor> tensors;
  for (const char* name : {"a", "b", "c"}) {
    tensors.push_back({.name = name,
                       .section = {},
                       .type = ScalarType::f32,
                       .shape = {1},
                       .strides = {1},
                       .data = reinterpret_cast<const char*>(&one)});
  }
  // The third file cannot be written.
  std::filesystem::create_directory(path("x-00003-of-00003.safetensors"));
  expect_error(
      [&] { io::write_safetensors(path("x.safetensors"), tensors, {.max_file_bytes = 4}); },
      ErrorCode::io, {"x-00003-of-00003.safetensors"});
  std::size_t left = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++left;
  EXPECT_EQ(left, 1u);  // the folder
}

}  // namespace
}  // namespace mhla::test
