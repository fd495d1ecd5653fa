// Files of torch.save: tensors, sections and metadata are found, and nothing else is believed.
#include "io/pytorch.h"

#include <string>
#include <vector>

#include "io/files.h"
#include "support/torch_file.h"

namespace mhla::test {
namespace {

using io::Checkpoint;
using io::Shape;
namespace p = pickled;

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

const std::vector<ZipItem> kSix = {{"archive/data/0", floats({0, 1, 2, 3, 4, 5})}};

std::string six(std::int64_t offset, const std::vector<std::int64_t>& shape,
                const std::vector<std::int64_t>& strides) {
  return p::tensor(p::storage("FloatStorage", "0", 6), offset, shape, strides);
}

TEST(Pytorch, ReadsViewsOfAStorage) {
  const std::string value = p::dict({{"all", six(0, {2, 3}, {3, 1})},
                                     {"transposed", six(0, {3, 2}, {1, 3})},
                                     {"slice", six(1, {2}, {3})},
                                     {"scalar", six(5, {}, {})},
                                     {"empty", six(6, {0, 4}, {4, 1})}});
  for (const bool in64 : {false, true}) {
    const Checkpoint file = read(torch_file(value, kSix, in64));
    EXPECT_EQ(file.format(), "pytorch");
    ASSERT_EQ(file.tensors().size(), 5u);
    EXPECT_EQ(values<float>(file.at("all")), (std::vector<float>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(values<float>(file.at("transposed")), (std::vector<float>{0, 3, 1, 4, 2, 5}));
    EXPECT_EQ(values<float>(file.at("slice")), (std::vector<float>{1, 4}));
    EXPECT_EQ(values<float>(file.at("scalar")), (std::vector<float>{5}));
    EXPECT_EQ(file.at("empty").shape, (Shape{0, 4}));
  }
}

TEST(Pytorch, FindsSectionsAndMetadata) {
  const std::string weights = p::dict(
      {{"w", six(0, {2}, {1})}, {"block", p::dict({{"b", six(2, {1}, {1})}})}});
  const Checkpoint file = read(torch_file(
      p::dict({{"model", weights},
               {"ema", p::dict({{"w", six(4, {2}, {1})}})},
               {"opt", p::dict({{"state",
                                 "}" + p::integer(7) + p::dict({{"m", six(0, {1}, {1})}}) + "s"}})},
               {"epoch", p::integer(3)},
               {"name", p::text("tiny")},
               {"betas", p::tuple({p::integer(1), "\x88", "N"})}}),
      kSix));
  EXPECT_EQ(file.sections(),
            (std::vector<std::string>{"ema", "model", "model.block", "opt.state.7"}));
  EXPECT_EQ(file.metadata(),
            (io::Metadata{{"epoch", "3"}, {"name", "tiny"}, {"betas", "[1, True, None]"}}));
  EXPECT_NE(file.find("opt.state.7.m"), nullptr);
  const Checkpoint model = file.section("model");
  EXPECT_EQ(values<float>(model.at("block.b")), (std::vector<float>{2}));
  EXPECT_EQ(model.sections(), std::vector<std::string>{"block"});
  const Checkpoint chosen = file.weights();
  ASSERT_EQ(chosen.tensors().size(), 1u) << "averaged weights come first";
  EXPECT_EQ(values<float>(chosen.at("w")), (std::vector<float>{4, 5}));
  EXPECT_NE(chosen.notes().at(0).find("'ema'"), std::string::npos);
  expect_error([&] { file.section("mdel"); }, ErrorCode::invalid_argument, {"'mdel'", "'model'"});
  expect_error([&] { chosen.section("x"); }, ErrorCode::invalid_argument, {"the file has none"});
}

TEST(Pytorch, RunsNothingAndNamesWhatItRefuses) {
  const auto refused = [](const std::string& value, const std::string& part) {
    expect_refused(torch_file(value, kSix), {part}, ErrorCode::unsupported);
  };
  refused(p::global("os", "system") + p::tuple({p::text("touch /tmp/owned")}) + "R", "'os.system'");
  refused(p::global("builtins", "eval") + p::tuple({p::text("1")}) + "R", "'builtins.eval'");
  refused(p::text("posix") + p::text("system") + "\x93", "'posix.system'");
  refused(p::global("torch._utils", "_rebuild_sparse_tensor"),
          "'torch._utils._rebuild_sparse_tensor'");
  refused(p::global("torch", "load"), "'torch.load'");
  refused(p::global("torch", "QInt8Storage"), "'torch.QInt8Storage'");
  refused(p::global("torch\nos", ""), "torch.os");
}

TEST(Pytorch, RefusesTensorsThatLeaveTheirStorage) {
  const auto refused = [](const std::string& tensor, const std::string& part,
                          ErrorCode code = ErrorCode::corrupt_data) {
    expect_refused(torch_file(p::dict({{"x", tensor}}), kSix), {"'x'", part}, code);
  };
  constexpr std::int64_t kMost = INT64_MAX;
  refused(six(1, {6}, {1}), "leave its storage of 6");
  refused(six(-1, {2}, {1}), "leave its storage");
  refused(six(7, {0}, {1}), "leave its storage");
  refused(six(0, {2, 2}, {5, 2}), "leave its storage");
  refused(six(0, {3}, {-1}), "leave its storage");
  refused(six(0, {2}, {kMost}), "leave its storage");
  refused(six(kMost, {2}, {kMost}), "leave its storage");
  refused(six(0, {3}, {kMost}), "leave its storage");
  refused(six(0, {kMost, kMost}, {0, 0}), "larger than 2^63");
  refused(six(0, {-1}, {1}), "negative size");
  refused(six(0, {2, 3}, {1}), "2 sizes, but 1 strides");
  refused(six(0, {1000000000}, {0}), "save tensor.contiguous()", ErrorCode::unsupported);
  refused(p::tensor(p::storage("FloatStorage", "0", 7), 0, {1}, {1}),
          "of 7 elements of 4 bytes has 24");
  refused(p::tensor(p::storage("FloatStorage", "0", -1), 0, {1}, {1}), "of -1 elements");
  refused(p::tensor(p::storage("FloatStorage", "1", 6), 0, {1}, {1}), "'1' is not in the zip file");
  refused(p::tensor(p::storage("FloatStorage", "../../secret", 6), 0, {1}, {1}),
          "not in the zip file");
  refused(p::tensor(p::integer(3), 0, {1}, {1}), "expected a storage");
  refused(p::global("torch._utils", "_rebuild_tensor_v2") +
              p::tuple({p::storage("FloatStorage", "0", 6), p::integer(0), "N", "N", "N", "N"}) +
              "R",
          "expected a tuple");
}

TEST(Pytorch, RefusesDamagedPickles) {
  const auto refused = [](const std::string& value, const std::string& part) {
    expect_refused(torch_file(value, kSix), {part});
  };
  refused("", "nothing on the stack");
  refused("(", "nothing on the stack");
  refused("t", "no mark on the stack");
  refused("R", "nothing on the stack");
  refused("N(R", "nothing on the stack");
  refused("(NNu", "nothing on the stack");
  refused("}(Nu", "a key without a value");
  refused("](NNu", "not a dict");
  refused("}(NNe", "not a list");
  refused("h\x05", "memo entry 5 of 0");
  refused("Nr\xff\xff\xff\xff", "memo entry 4294967295 after 0");
  refused("NQ", "no storage");
  refused("N)R", "no function");
  refused("N}b", "gives attributes");
  refused("X\xff\xff\xff\xff", "truncated, 4294967295 bytes expected");
  refused(p::text("\xff\xfe"), "not UTF-8");
  refused("ctorch", "truncated inside a name");
  refused("\x80\x09", "protocol 9");
  refused("i", "opcode 105");
  refused(std::string("G\0\0", 3), "truncated, 8 bytes expected");
  refused("}(NNu", "neither text nor integer");
  const std::string good = "\x80\x02" + p::dict({{"x", six(0, {2}, {1})}}) + ".";
  for (std::size_t length = 0; length < good.size(); ++length) {
    std::vector<ZipItem> items = kSix;
    items.push_back({"archive/data.pkl", good.substr(0, length)});
    EXPECT_THROW(read(zip_file(items)), Error) << length;
  }
}

// Small files that would fill the memory or never end, if they were believed.
TEST(Pytorch, RefusesBombs) {
  const auto refused = [](const std::string& value, const std::string& part,
                          const std::vector<ZipItem>& storages = kSix) {
    expect_refused(torch_file(value, storages), {part});
  };
  refused("]q" + std::string(1, '\0') + "h" + std::string(1, '\0') + "a",
          "nested deeper");      // l = [l]
  std::string laughs = "]\x94";  // each list holds the one before ten times: 10^20 paths
  for (char level = 0; level < 20; ++level) {
    laughs += "](";
    for (int i = 0; i < 10; ++i) laughs += std::string("h") + level;
    laughs += "e\x94";
  }
  refused(laughs, "counting shared ones");
  refused(std::string(100, '(') + "N" + std::string(100, 't'), "nested deeper");
  refused(p::dict({{std::string(5000, 'k'), "N"}}), "a name longer than 4096");
  // The same kilobytes, claimed by a thousand tensors.
  const std::vector<ZipItem> storage = {{"archive/data/0", std::string(1 << 20, '\0')}};
  std::string many = "}(";
  const std::string tensor = p::tensor(p::storage("FloatStorage", "0", 1 << 18), 0, {1 << 18}, {1});
  many += p::text("0") + tensor + "\x94";
  for (int i = 1; i < 1000; ++i) many += p::text(std::to_string(i)) + "h" + std::string(1, '\0');
  refused(many + "u", "bytes in a file of", storage);
}

TEST(Pytorch, RefusesOtherZipFiles) {
  const auto unsupported = [](const std::string& bytes, const std::string& part) {
    expect_refused(bytes, {part}, ErrorCode::unsupported);
  };
  const ZipItem data{"a/data.pkl", "\x80\x02}."};
  unsupported(zip_file({{"document.xml", "x"}}), "not one of torch.save");
  unsupported(zip_file({data, {"b/data.pkl", "\x80\x02}."}}), "two pickles");
  unsupported(zip_file({data, {"a/constants.pkl", ""}}), "TorchScript");
  unsupported(zip_file({data, {"a/byteorder", "big"}}), "byte order 'big'");
  unsupported(zip_file({{data.name, data.bytes, 8}}), "method 8");
  unsupported(zip_file({{data.name, data.bytes, 0, 1}}), "encrypted");
  EXPECT_EQ(count(zip_file({data})), 0u);
}

TEST(Pytorch, RefusesDamagedZipFiles) {
  const std::string good = torch_file(p::dict({{"x", six(0, {2}, {1})}}), kSix);
  for (const bool in64 : {false, true}) {
    const std::string right = torch_file(p::dict({{"x", six(0, {2}, {1})}}), kSix, in64);
    EXPECT_EQ(count(right), 1u);
    for (std::size_t length = 0; length < right.size(); ++length) {
      EXPECT_THROW(read(right.substr(0, length)), Error) << length;
    }
    // One byte of the directory at a time: accepted or refused, but never read outside.
    for (std::size_t at = right.find("PK\x01\x02"); at < right.size(); ++at) {
      for (const char value : {'\0', '\1', '\x7f', '\xff'}) {
        std::string wrong = right;
        wrong[at] = value;
        try {
          const Checkpoint file = read(wrong);
          for (const io::Tensor& tensor : file.tensors()) values<float>(tensor);
        } catch (const Error& error) {
          EXPECT_NE(std::string(error.what()).find("'some.file'"), std::string::npos)
              << error.what();
        }
      }
    }
  }
  const auto changed = [&](const std::string& mark, std::size_t offset, const std::string& bytes) {
    std::string wrong = good;
    wrong.replace(wrong.find(mark) + offset, bytes.size(), bytes);
    return wrong;
  };
  expect_refused(changed("PK\x01\x02", 42, little(std::uint32_t{5})), {"no header at 5"});
  expect_refused(changed("PK\x01\x02", 42, little(std::uint32_t{0xfffffff0})),
                 {"outside of the file"});
  expect_refused(changed("PK\x01\x02", 20, little(0x7fffffff7fffffffULL)), {"outside of the file"});
  expect_refused(changed("PK\x01\x02", 24, little(std::uint32_t{1})), {"its sizes differ"});
  expect_refused(changed("PK\x01\x02", 46, "X"), {"has another name"});
  expect_refused(changed("PK\x05\x06", 10, little(std::uint16_t{900})), {"900 entries"});
  expect_refused(changed("PK\x05\x06", 16, little(std::uint32_t{3})), {"does not end at"});
  expect_refused(changed("PK\x05\x06", 4, little(std::uint16_t{1})), {"several disks"},
                 ErrorCode::unsupported);
  // Two directory entries that point to the same content.
  std::string twice = zip_file({{"a/data.pkl", "\x80\x02}."}, {"a/data.pkl", "\x80\x02}."}});
  expect_refused(twice, {"two entries are called 'a/data.pkl'"});
  twice.replace(twice.rfind("PK\x01\x02") + 42, 4, little(std::uint32_t{0}));
  expect_refused(twice, {"overlap"});
}

}  // namespace
}  // namespace mhla::test
