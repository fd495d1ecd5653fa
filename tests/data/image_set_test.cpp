// Data sets written here in each format, and what is said about those that are wrong.
#include "data/image_set.h"

#include <array>

#include "data/relations.h"
#include "io/files.h"

namespace {

using mhla::Error;
using mhla::data::ImageSource;
using mhla::data::open_image_set;
using mhla::io::Image;

class DataSets : public mhla::test::IoTest {
 protected:
  std::string message_of(const ImageSource& source) const {
    try {
      open_image_set(source);
    } catch (const Error& error) {
      return error.what();
    }
    return "(nothing was thrown)";
  }
  void make_folder(const std::string& name) const {
    std::filesystem::create_directories(path(name));
  }
  // A picture of one colour.
  void picture(const std::string& name, std::uint8_t value) const {
    make_folder(std::filesystem::path(name).parent_path().string());
    mhla::io::write_image(path(name), Image(5, 4, value, 0, 0).view());
  }
  ImageSource source(const std::string& split = "train") const {
    ImageSource result;
    result.path = folder_;
    result.split = split;
    return result;
  }
};

std::string cifar_record(const std::string& labels, char r, char g, char b) {
  std::string planes = std::string(1024, r) + std::string(1024, g) + std::string(1024, b);
  planes[1] = 'x';  // red of the second pixel
  return labels + planes;
}

TEST_F(DataSets, Cifar10) {
  for (int i = 1; i <= 5; ++i) {
    const char label = static_cast<char>(i);
    write("data_batch_" + std::to_string(i) + ".bin",
          cifar_record(std::string(1, label), 'r', 'g', 'b') +
              cifar_record(std::string(1, '\0'), 'R', 'G', 'B'));
  }
  write("test_batch.bin", cifar_record("\x09", '1', '2', '3'));
  write("batches.meta.txt", "airplane\nautomobile\n\n");
  const auto train = open_image_set(source());
  EXPECT_EQ(train->format(), "cifar10");
  EXPECT_EQ(train->size(), 10);
  EXPECT_EQ(train->target(4), 3);
  EXPECT_EQ(train->classes().size(), 10U);
  EXPECT_EQ(train->classes()[1], "automobile");
  const Image image = train->picture(4);
  EXPECT_EQ(image.width(), 32);
  EXPECT_EQ(std::string(image.pixels().begin(), image.pixels().begin() + 6), "rgbxgb");
  const auto test = open_image_set(source("test"));
  EXPECT_EQ(test->size(), 1);
  EXPECT_EQ(test->target(0), 9);
}

TEST_F(DataSets, Cifar100TakesTheFineLabel) {
  write("train.bin", cifar_record("\x03\x63", 'a', 'b', 'c'));
  const auto set = open_image_set(source());
  EXPECT_EQ(set->format(), "cifar100");
  EXPECT_EQ(set->target(0), 99);
  EXPECT_EQ(set->classes().size(), 100U);
  EXPECT_NE(message_of(source("val")).find("test.bin"), std::string::npos);
}

TEST_F(DataSets, ALinkThatLeadsBackUpIsNotFollowed) {
  picture("train/a/1.png", 1);
  picture("train/b/2.png", 2);
  std::filesystem::create_directory_symlink("..", path("train/a/loop"));
  make_folder("elsewhere");
  picture("elsewhere/3.png", 3);
  std::filesystem::create_directory_symlink(path("elsewhere"), path("train/c"));
  const auto set = open_image_set(source());
  EXPECT_EQ(set->size(), 3);
  EXPECT_EQ(set->classes(), (std::vector<std::string>{"a", "b", "c"}));
}

TEST_F(DataSets, DamagedCifarIsNamed) {
  write("test_batch.bin", cifar_record("\x0a", 'a', 'b', 'c'));
  EXPECT_NE(message_of(source("val")).find("label 10 of 10 classes"), std::string::npos);
  write("test_batch.bin", std::string(100, 'a'));
  EXPECT_NE(message_of(source("val")).find("test_batch.bin: 100 bytes"), std::string::npos);
  EXPECT_NE(message_of(source("train")).find("data_batch_1.bin"), std::string::npos);
}

std::string big_endian(unsigned value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 255);
  return bytes;
}

TEST_F(DataSets, Idx) {
  const std::string head = {0, 0, 8, 3};
  const std::string labels = {0, 0, 8, 1};
  write("t10k-images-idx3-ubyte",
        head + big_endian(2) + big_endian(2) + big_endian(3) + "abcdefGHIJKL");
  write("t10k-labels-idx1-ubyte", labels + big_endian(2) + std::string{7, 1});
  const auto set = open_image_set(source("val"));
  EXPECT_EQ(set->format(), "idx");
  EXPECT_EQ(set->size(), 2);
  EXPECT_EQ(set->target(0), 7);
  EXPECT_EQ(set->classes().size(), 10U);
  const Image image = set->picture(1);
  EXPECT_EQ(image.width(), 3);
  EXPECT_EQ(image.height(), 2);
  EXPECT_EQ(std::string(image.row(1), image.row(1) + 4), "JJJK");

  write("t10k-labels-idx1-ubyte", labels + big_endian(1) + "a");
  EXPECT_NE(message_of(source("val")).find("2 pictures, but 1 labels"), std::string::npos);
  write("t10k-images-idx3-ubyte",
        head + big_endian(1U << 31) + big_endian(1U << 31) + big_endian(1U << 31));
  EXPECT_NE(message_of(source("val")).find("too large"), std::string::npos);
  write("t10k-images-idx3-ubyte", "\x1f\x8b");
  EXPECT_NE(message_of(source("val")).find("gzip"), std::string::npos);
}

TEST_F(DataSets, AFolderWithSplitsNumbersTheClassesOfAllOfThem) {
  picture("train/cat/2.png", 2);
  picture("train/cat/1.png", 1);
  picture("train/zebra/3.png", 3);
  picture("val/dog/4.png", 4);
  picture("other/x/5.png", 5);
  write("train/cat/notes.txt", "no picture");
  const auto train = open_image_set(source());
  EXPECT_EQ(train->format(), "folder");
  EXPECT_EQ(train->classes(), (std::vector<std::string>{"cat", "dog", "zebra"}));
  ASSERT_EQ(train->size(), 3);
  EXPECT_EQ(train->picture(0), Image(5, 4, 1, 0, 0));  // in the order of names
  EXPECT_EQ(train->target(2), 2);
  EXPECT_NE(train->name(2).find("train/zebra/3.png"), std::string::npos);
  const auto val = open_image_set(source("val"));
  ASSERT_EQ(val->size(), 1);
  EXPECT_EQ(val->target(0), 1);
}

TEST_F(DataSets, AFolderWithoutSplitsIsOneSet) {
  picture("a/1.png", 1);
  picture("b/2.png", 2);
  EXPECT_EQ(open_image_set(source("train"))->size(), 2);
  EXPECT_EQ(open_image_set(source("val"))->size(), 2);
}

TEST_F(DataSets, DecodedPicturesAreKept) {
  picture("a/1.png", 1);
  picture("a/2.png", 2);
  ImageSource one = source();
  one.cache_bytes = 60;  // of two pictures of 60 bytes
  const auto set = open_image_set(one);
  const Image first = set->picture(0);
  set->picture(1);
  std::filesystem::remove_all(path("a"));
  EXPECT_EQ(set->picture(0), first);
  EXPECT_THROW(set->picture(1), Error);
}

TEST_F(DataSets, ATarFileIsAFolder) {
  picture("set/train/cat/1.png", 1);
  picture("set/val/dog/2.png", 2);
  const std::string command = "tar -C '" + folder_ + "' -czf '" + path("set.tar.gz") +
                              "' set && rm -r '" + path("set") + "'";
  ASSERT_EQ(std::system(command.c_str()), 0);
  ImageSource packed;
  packed.path = path("set.tar.gz");
  packed.split = "val";
  const auto set = open_image_set(packed);
  EXPECT_EQ(set->format(), "tar");
  ASSERT_EQ(set->size(), 1);
  EXPECT_EQ(set->target(0), 1);
  EXPECT_EQ(set->picture(0), Image(5, 4, 2, 0, 0));
}

TEST_F(DataSets, WhatIsNoDataSetIsSaidSo) {
  EXPECT_NE(message_of(source()).find("holds no PNG or JPEG"), std::string::npos);
  EXPECT_NE(message_of(source("dev")).find("unknown 'dev'"), std::string::npos);
  ImageSource missing;
  missing.path = path("none");
  EXPECT_NE(message_of(missing).find("no data set at"), std::string::npos);
  missing.path = write("text", "hello");
  EXPECT_NE(message_of(missing).find("neither a folder nor a tar"), std::string::npos);
}

TEST(Relations, TheSameNumbersGiveTheSamePicture) {
  const auto a = mhla::data::draw_relation(1, 2, 32), b = mhla::data::draw_relation(1, 2, 32);
  EXPECT_EQ(a.image, b.image);
  EXPECT_EQ(a.target, b.target);
  EXPECT_NE(a.image, mhla::data::draw_relation(1, 3, 32).image);
  EXPECT_NE(a.image, mhla::data::draw_relation(2, 2, 32).image);
  EXPECT_EQ(mhla::data::draw_relation(1, 2, 0).target, a.target);
  EXPECT_EQ(mhla::data::draw_relation(1, 2, 97).target, a.target);
}

TEST(Relations, EveryClassIsAboutAsFrequent) {
  std::array<int, mhla::data::kRelationClasses> counts{};
  for (std::uint64_t i = 0; i < 5000; ++i) ++counts[mhla::data::draw_relation(0, i, 0).target];
  for (const int count : counts) EXPECT_NEAR(count, 500, 5 * 21);  // five standard deviations
}

TEST(Relations, TrainingAndEvaluationShareNoPicture) {
  ImageSource source;
  source.samples = 50;
  const auto train = open_image_set(source);
  source.split = "val";
  const auto val = open_image_set(source);
  EXPECT_EQ(train->size(), 50);
  EXPECT_EQ(train->classes().size(), 10U);
  for (int i = 0; i < 50; ++i) EXPECT_NE(train->picture(i), val->picture(i));
  source.image_size = 4;
  EXPECT_THROW(open_image_set(source), Error);
}

}  // namespace
