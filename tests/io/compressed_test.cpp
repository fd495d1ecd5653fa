// Packed files: what comes out, damage, limits; tar files.
#include "io/compressed.h"

#include "io/files.h"
#include "io/tar.h"
#include "support/packed_file.h"

namespace {

using mhla::Error;
using mhla::io::unpack;

using mhla::test::kContent;
using mhla::test::kGz;
using mhla::test::kXz;
using mhla::test::tar_entry;

// Where a build has no liblzma its files are refused with the way out.
bool has_xz() {
  try {
    return unpack(kXz, "x") == kContent;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), mhla::ErrorCode::unsupported);
    return false;
  }
}

TEST(Compressed, PlainFilesStayAsTheyAre) {
  EXPECT_EQ(unpack("abc", "x"), "abc");
  EXPECT_EQ(unpack("", "x"), "");
  EXPECT_THROW(unpack("abc", "x", 2), Error);
}

TEST(Compressed, PackedFilesAreToldByTheirFirstBytes) {
  EXPECT_EQ(unpack(kGz, "x"), kContent);
  EXPECT_EQ(unpack(kGz + kGz, "x"), kContent + kContent);  // two members
  if (has_xz()) {
    EXPECT_EQ(unpack(kXz, "x"), kContent);
  }
}

TEST(Compressed, EveryCutAndEveryFlippedByteOfTheContentIsNoticed) {
  for (const std::string& packed : {kGz, has_xz() ? kXz : kGz}) {
    for (std::size_t length = 6; length < packed.size(); ++length) {
      EXPECT_THROW(unpack(packed.substr(0, length), "x"), Error) << length;
    }
    for (std::size_t i = 12; i < packed.size(); ++i) {
      std::string damaged = packed;
      damaged[i] = static_cast<char>(damaged[i] ^ 0x55);
      try {
        EXPECT_NE(unpack(damaged, "x"), kContent + "?");
        EXPECT_EQ(unpack(damaged, "x"), kContent) << i;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("x: "), std::string::npos);
      }
    }
  }
}

TEST(Compressed, MoreThanTheLimitIsRefused) {
  EXPECT_EQ(unpack(kGz, "x", kContent.size()), kContent);
  EXPECT_THROW(unpack(kGz, "x", kContent.size() - 1), Error);
  if (has_xz()) {
    EXPECT_THROW(unpack(kXz, "x", kContent.size() - 1), Error);
  }
}

TEST(Tar, FilesComeInOrderAndOthersAreLeftOut) {
  const std::string end(1024, '\0');
  const std::string archive = tar_entry("train/", "", '5') + tar_entry("train/a.png", "A") +
                              tar_entry("link", "", '2') +
                              tar_entry("train/b.png", std::string(700, 'b')) + end;
  ASSERT_TRUE(mhla::io::looks_like_tar(archive));
  const auto files = mhla::io::read_tar(archive, "x");
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].name, "train/a.png");
  EXPECT_EQ(files[0].bytes, "A");
  EXPECT_EQ(files[1].bytes, std::string(700, 'b'));
}

TEST(Tar, LongNamesOfBothKinds) {
  const std::string name(300, 'n');
  const std::string gnu = tar_entry("././@LongLink", name + '\0', 'L') + tar_entry("n", "1");
  const std::string record = " path=" + name + "\n";
  const std::string pax = tar_entry("pax", std::to_string(record.size() + 3) + record, 'x');
  const auto files = mhla::io::read_tar(gnu + pax + tar_entry("m", "2") + tar_entry("o", "3"), "x");
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0].name, name);
  EXPECT_EQ(files[1].name, name);
  EXPECT_EQ(files[2].name, "o");
}

TEST(Tar, DamageIsRefused) {
  std::string archive = tar_entry("a", std::string(600, 'x'));
  EXPECT_THROW(mhla::io::read_tar(archive.substr(0, 1000), "x"), Error);
  // Cut off inside the header of the next file, which would be missing without a word.
  EXPECT_THROW(mhla::io::read_tar(archive + archive.substr(0, 300), "x"), Error);
  EXPECT_THROW(mhla::io::read_tar(archive.substr(0, archive.size() - 1), "x"), Error);
  EXPECT_EQ(mhla::io::read_tar(archive, "x").size(), 1U);
  archive[130] = '7';  // the size, and with it the checksum
  EXPECT_THROW(mhla::io::read_tar(archive, "x"), Error);
  EXPECT_FALSE(mhla::io::looks_like_tar("short"));
  EXPECT_TRUE(mhla::io::read_tar("", "x").empty());
}

}  // namespace
