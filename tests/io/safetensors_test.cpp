// safetensors files: what is written is read, and whatever is wrong with one is refused.
#include "io/safetensors.h"

#include <sys/stat.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "io/files.h"

namespace mhla::test {
namespace {

using io::Checkpoint;
using io::save_safetensors;
using io::ScalarType;
using io::Shape;
using io::Tensor;

constexpr ScalarType kTypes[] = {
    ScalarType::f64,     ScalarType::f32,     ScalarType::f16, ScalarType::bf16,
    ScalarType::f8_e4m3, ScalarType::f8_e5m2, ScalarType::c64, ScalarType::i64,
    ScalarType::i32,     ScalarType::i16,     ScalarType::i8,  ScalarType::u64,
    ScalarType::u32,     ScalarType::u16,     ScalarType::u8,  ScalarType::boolean};

class Safetensors : public IoTest {};

Tensor view(const std::string& name, ScalarType type, const Shape& shape, const void* data) {
  return {.name = name,
          .section = {},
          .type = type,
          .shape = shape,
          .strides = io::row_major_strides(shape),
          .data = static_cast<const char*>(data)};
}

std::string f32_entry(const std::string& name, const std::string& shape,
                      const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[" + shape + "],\"data_offsets\":[" +
         offsets + "]}";
}

TEST_F(Safetensors, RoundTripsEveryTypeScalarsAndEmptyTensors) {
  std::vector<char> bytes(6 * 8);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 37 + 11);
  std::vector<Tensor> tensors;
  for (const ScalarType type : kTypes) {
    const std::string base = io::name(type);
    tensors.push_back(view(base + ".matrix", type, {2, 3}, bytes.data()));
    tensors.push_back(view(base + ".scalar", type, {}, bytes.data()));
    tensors.push_back(view(base + ".empty", type, {2, 0, 3}, nullptr));
  }
  const auto written = save_safetensors(path("all.safetensors"), tensors,
                                        {.metadata = {{"a", "b\n\"ü"}}});
  ASSERT_EQ(written, std::vector{path("all.safetensors")});
  const Checkpoint read = Checkpoint::open(written[0]);
  EXPECT_EQ(read.format(), "safetensors");
  EXPECT_EQ(read.metadata(), (io::Metadata{{"a", "b\n\"ü"}}));
  ASSERT_EQ(read.tensors().size(), tensors.size());
  for (const Tensor& expected : tensors) {
    const Tensor& got = read.at(expected.name);
    EXPECT_EQ(got.type, expected.type) << expected.name;
    EXPECT_EQ(got.shape, expected.shape) << expected.name;
    ASSERT_EQ(got.bytes(), expected.bytes()) << expected.name;
    EXPECT_EQ(got.bytes() > 0 ? std::memcmp(got.data, expected.data, got.bytes()) : 0, 0);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got.data) % size_of(got.type), 0u) << "alignment";
  }
}

TEST_F(Safetensors, GathersStridedTensorsWhenWriting) {
  const std::vector<float> data = {0, 1, 2, 3, 4, 5};
  Tensor transposed = view("t", ScalarType::f32, {3, 2}, data.data());
  transposed.strides = {1, 3};
  save_safetensors(path("t.safetensors"), {transposed});
  const Checkpoint read = Checkpoint::open(path("t.safetensors"));
  EXPECT_EQ(values<float>(read.at("t")), (std::vector<float>{0, 3, 1, 4, 2, 5}));
}

TEST_F(Safetensors, ReplacesAFileOnlyWhenTheNewOneIsComplete) {
  const std::vector<float> one = {1}, two = {2};
  const std::string file = path("m.safetensors");
  save_safetensors(file, {view("x", ScalarType::f32, {1}, one.data())});
  const Checkpoint old = Checkpoint::open(file);
  save_safetensors(file, {view("x", ScalarType::f32, {1}, two.data())});
  EXPECT_EQ(values<float>(old.at("x")), one) << "a mapped file was changed";
  EXPECT_EQ(values<float>(Checkpoint::open(file).at("x")), two);
  expect_error([&] { save_safetensors(path("no/such.safetensors"), {}); }, ErrorCode::io,
               {"cannot create"});
  expect_error([&] { save_safetensors(folder_, {}); }, ErrorCode::io, {"not a regular file"});
  const std::vector<Tensor> twice(2, view("x", ScalarType::f32, {1}, one.data()));
  expect_error([&] { save_safetensors(file, twice); }, ErrorCode::invalid_argument,
               {"'x'", "twice"});
  expect_error([&] { save_safetensors(file, {view("\xff", ScalarType::f32, {1}, one.data())}); },
               ErrorCode::invalid_argument, {"UTF-8"});
  expect_error(
      [&] { save_safetensors(file, {view("__metadata__", ScalarType::f32, {}, one.data())}); },
      ErrorCode::invalid_argument, {"__metadata__"});
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++files;
  EXPECT_EQ(files, 1u) << "a temporary file was left";
  EXPECT_EQ(values<float>(Checkpoint::open(file).at("x")), two);
}

TEST_F(Safetensors, SplitsIntoShardsAndReadsThemBack) {
  const std::vector<float> data = {1, 2, 3, 4};
  std::vector<Tensor> tensors;
  for (const char* name : {"a", "b", "c"})
    tensors.push_back(view(name, ScalarType::f32, {4}, data.data()));
  const io::SaveOptions options{.metadata = {{"format", "pt"}}, .max_file_bytes = 20};
  const auto written = save_safetensors(path("model.safetensors"), tensors, options);
  ASSERT_EQ(written.size(), 4u);
  EXPECT_EQ(written[0], path("model.safetensors.index.json"));
  EXPECT_EQ(written[3], path("model-00003-of-00003.safetensors"));
  for (const std::string& place : {written[0], folder_}) {
    const Checkpoint read = Checkpoint::open(place);
    ASSERT_EQ(read.tensors().size(), 3u);
    EXPECT_EQ(values<float>(read.at("c")), data);
    EXPECT_EQ(read.metadata().at("total_size"), "48");
    EXPECT_EQ(read.metadata().at("format"), "pt");
  }
  expect_error([&] { save_safetensors(path("model.bin"), tensors, options); },
               ErrorCode::invalid_argument, {".safetensors"});
}

TEST_F(Safetensors, NamesTheNearestTensorAndTheMissingFile) {
  const Checkpoint read = test::read(
      safetensors_file("{" + f32_entry("weight", "1", "0,4") + "}", "abcd"));
  EXPECT_EQ(read.find("wieght"), nullptr);
  expect_error([&] { read.at("wieght"); }, ErrorCode::invalid_argument, {"'wieght'", "'weight'"});
  expect_error([&] { Checkpoint::open(path("none")); }, ErrorCode::io, {"none", "No such file"});
  expect_error([&] { Checkpoint::open(folder_); }, ErrorCode::io, {"model.safetensors"});
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  expect_error([&] { Checkpoint::open(path("pipe")); }, ErrorCode::io, {"not a regular file"});
}

TEST_F(Safetensors, RefusesDamagedFiles) {
  const std::string good = safetensors_file("{" + f32_entry("x", "2", "0,8") + "}", "abcdefgh");
  EXPECT_EQ(count(good), 1u);
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_THROW(read(good.substr(0, length)), Error) << length;
  }
  expect_refused("", {"neither a safetensors file"});
  expect_refused("not a checkpoint", {"neither"});
  expect_refused(good + "x", {"1 bytes after the last tensor"});
  std::string huge = good;
  huge.replace(0, 8, std::string(7, '\xff') + "\x7f");
  expect_refused(huge, {"header of 9223372036854775807 bytes"});
  huge.replace(0, 8, std::string("\0\0\0\1\0\0\0\0", 8));
  expect_refused(huge, {"truncated: the header takes 16777216"});
  expect_refused("\x80\x02}q", {"torch.load"}, ErrorCode::unsupported);
}

TEST_F(Safetensors, RefusesHostileHeaders) {
  const auto refused = [](const std::string& entries, const std::vector<std::string>& parts,
                          const std::string& data = "abcdefgh") {
    expect_refused(safetensors_file("{" + entries + "}", data), parts);
  };
  const std::string x = f32_entry("x", "1", "0,4");
  refused(f32_entry("x", "2", "0,8") + "," + f32_entry("y", "1", "4,8"),
          {"'y'", "inside the one before"});
  refused(x + "," + f32_entry("y", "0", "8,8"), {"'y'", "unused bytes from 4"});
  refused(x, {"4 bytes after the last tensor"});
  refused(x + "," + f32_entry("x", "1", "4,8"), {"two tensors are called 'x'"});
  refused(f32_entry("x", "2", "8,0"), {"'x'", "backwards"});
  refused(f32_entry("x", "3", "0,8"), {"'x'", "hold 8 bytes, but F32 [3] needs 12"});
  refused(f32_entry("x", "4", "0,16"), {"truncated: tensor 'x' ends at byte 16 of 8"});
  refused(f32_entry("x", "2", "18446744073709551608,18446744073709551615"), {"'x'"});
  refused(f32_entry("x", "4611686018427387904,4", "0,8"), {"larger than 2^63"});
  refused(f32_entry("x", "0,4611686018427387904,4611686018427387904", "0,0"), {"larger than 2^63"});
  refused(f32_entry("x", "9223372036854775808", "0,8"), {"larger than 2^63"});
  refused(f32_entry("x", "18446744073709551616", "0,8"),
          {"unexpected value '18446744073709551616'"});
  refused(f32_entry("x", "-2", "0,8"), {"unexpected value '-2'"});
  refused(f32_entry("x", "2.0", "0,8"), {"unexpected value '2.0'"});
  refused(f32_entry("x", "[2]", "0,8"), {"unexpected '['"});
  refused(f32_entry("x", "2", "0"), {"expected 2 numbers, got 1"});
  refused(f32_entry("x", "2", "0,4,8"), {"expected 2 numbers, got 3"});
  std::string ones = "1";
  for (int i = 0; i < 100; ++i) ones += ",1";
  refused(f32_entry("x", ones, "0,4"), {"101 axes"});
  refused("\"x\":{\"dtype\":\"F32\",\"shape\":[2]}", {"'data_offsets'"});
  refused("\"x\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}", {"'dtype' is given twice"});
  refused("\"x\":{\"shape\":[2],\"shape\":[2]}", {"'shape' is given twice"});
  refused("\"x\":{\"offset\":0}", {"unknown key 'offset'"});
  refused("\"x\":{\"dtype\":7}", {"unexpected number 7 at 'dtype'"});
  refused("\"x\":3", {"unexpected number 3"});
  refused("\"x\":[]", {"unexpected '['"});
  refused("\"__metadata__\":{\"a\":{}}", {"unexpected '{'"});
  refused("\"__metadata__\":{\"a\":1}", {"unexpected number 1"});
  refused("\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}", {"'a' is given twice"});
  refused("\"__metadata__\":{},\"__metadata__\":{}", {"given twice"});
  refused("\"\xff\":{}", {"not valid JSON"});
  refused("\"x\":{\"dtype\":", {"not valid JSON at byte"});
  refused("} {", {"not valid JSON"});
  expect_refused(
      safetensors_file("{\"x\":{\"dtype\":\"F32\",\"shape\":" + std::string(1000000, '[')),
      {"unexpected '['"});
  expect_refused(safetensors_file("{\"x\":{\"dtype\":\"F7\",\"shape\":[],\"data_offsets\":[0,0]}}"),
                 {"'x'", "unknown dtype 'F7'", "BF16"}, ErrorCode::unsupported);
}

TEST_F(Safetensors, MessagesCannotForgeLinesOrColours) {
  expect_refused(safetensors_file("{\"\\n\\u001b[31mx\":3}"), {"'\\x0a\\x1b[31mx'"});
  const std::string long_name(5000, 'n');
  expect_refused(safetensors_file("{\"" + long_name + "\":3}"), {"...' (5000 bytes)"});
}

class Sharded : public IoTest {
 protected:
  void SetUp() override {
    IoTest::SetUp();
    std::filesystem::create_directory(path("m"));
    write("m/one", safetensors_file("{" + f32_entry("x", "1", "0,4") + "}", "abcd"));
    write("outside", safetensors_file("{" + f32_entry("x", "1", "0,4") + "}", "abcd"));
  }
  void refused(const std::string& json, const std::vector<std::string>& parts,
               ErrorCode code = ErrorCode::corrupt_data) const {
    const std::string index = write("m/model.safetensors.index.json", json);
    expect_error([&] { Checkpoint::open(index); }, code, parts);
  }
};

TEST_F(Sharded, NeverOpensAFileOutsideOfItsFolder) {
  const std::vector<std::string> plain = {"model.safetensors.index.json", "plain name"};
  refused(R"({"weight_map":{"x":"../outside"}})", plain);
  refused(R"({"weight_map":{"x":")" + path("outside") + R"("}})", plain);
  refused(R"({"weight_map":{"x":".."}})", plain);
  refused(R"({"weight_map":{"x":""}})", plain);
  refused(R"({"weight_map":{"x":"a\\b"}})", plain);
  refused(R"({"weight_map":{"x":"one\u0000"}})", plain);
  std::filesystem::create_symlink("../outside", path("m/link"));
  refused(R"({"weight_map":{"x":"link"}})", {"'link' is a link to", "outside of the folder"});
  refused(R"({"weight_map":{"x":"none"}})", {"'none'", "No such file"}, ErrorCode::io);
}

TEST_F(Sharded, AcceptsTheLinksOfTheHuggingFaceCache) {
  std::filesystem::create_directories(path("blobs"));
  std::filesystem::create_directories(path("snapshot"));
  write("blobs/1", slurp(path("m/one")));
  write("blobs/2", R"({"metadata":{"total_size":4},"weight_map":{"x":"model-1.safetensors"}})");
  std::filesystem::create_symlink("../blobs/1", path("snapshot/model-1.safetensors"));
  std::filesystem::create_symlink("../blobs/2", path("snapshot/model.safetensors.index.json"));
  const Checkpoint read = Checkpoint::open(path("snapshot"));
  EXPECT_EQ(read.tensors().size(), 1u);
}

TEST_F(Sharded, RefusesAnIndexThatDoesNotFitItsFiles) {
  refused(R"({"weight_map":{"y":"one"}})", {"'y' is not in 'one'"});
  refused(R"({"weight_map":{"x":"one","x":"one"}})", {"'x' is given twice"});
  refused(R"({"weight_map":{"x":1}})", {"'x': expected a file name, got '1'"});
  refused(R"({"weight_map":{"x":{}}})", {"'x': expected a file name"});
  refused(R"({"weight_map":["one"]})", {"expected an object"});
  refused(R"({"weight_map":"one"})", {"expected a file name"});
  refused(R"({})", {"no 'weight_map'"});
  refused(R"([])", {"expected a JSON object"});
  refused(R"(3)", {"expected a JSON object"});
  refused("{\"metadata\":" + std::string(100000, '['), {"nested deeper than 16"});
  refused("", {"not valid JSON"});
}

TEST_F(Sharded, SaysWhichTensorsTheIndexLeavesOut) {
  write("m/two",
        safetensors_file("{" + f32_entry("x", "1", "0,4") + "," + f32_entry("y", "1", "4,8") + "}",
                         "abcdefgh"));
  const std::string index = write("m/i.json", R"({"weight_map":{"x":"one","y":"two"}})");
  const Checkpoint read = Checkpoint::open(index);
  EXPECT_EQ(read.tensors().size(), 2u);
  ASSERT_EQ(read.notes().size(), 1u);
  EXPECT_NE(read.notes()[0].find("'two' holds 'x'"), std::string::npos) << read.notes()[0];
}

}  // namespace
}  // namespace mhla::test
