// The augmentation chain where chance decides. The operations themselves are compared with Pillow
// in tests/python/test_pictures_pillow.py, the distributions with timm in test_data_timm.py.
#include "data/augment.h"

#include <gtest/gtest.h>

#include <cmath>

#include "data/colour.h"
#include "mhla/error.h"

namespace {

using namespace mhla::data;
using mhla::Error;
using mhla::io::Image;

TEST(RandAugments, AreReadAsTimmWritesThem) {
  const RandAugment paper = parse_rand_augment("rand-m9-mstd0.5-inc1");
  EXPECT_EQ(paper.magnitude, 9);
  EXPECT_EQ(paper.deviation, 0.5);
  EXPECT_TRUE(paper.increasing);
  EXPECT_EQ(paper.operations, 2);
  EXPECT_EQ(paper.probability, 0.5);
  const RandAugment other = parse_rand_augment("rand-n3-m7-p0.9");
  EXPECT_EQ(other.magnitude, 7);
  EXPECT_EQ(other.deviation, 0);
  EXPECT_EQ(other.operations, 3);
  EXPECT_EQ(other.probability, 0.9);
  EXPECT_FALSE(other.increasing);
  for (const char* wrong : {"", "rand-", "augmix-m9", "rand-m11", "rand-m", "rand-q3", "rand-m9x",
                            "rand-p2", "rand-m9-"}) {
    EXPECT_THROW(parse_rand_augment(wrong), Error) << wrong;
  }
}

// spec.md 3.1, at the magnitude 9 of 10.
TEST(RandAugments, HaveTheArgumentsOfTheRecipe) {
  const RandAugment r;
  EXPECT_DOUBLE_EQ(r.argument(AugmentOp::rotate, 9, true), -27);
  EXPECT_DOUBLE_EQ(r.argument(AugmentOp::posterize, 9, false), 1);
  EXPECT_DOUBLE_EQ(r.argument(AugmentOp::posterize, 10, false), 0);
  EXPECT_DOUBLE_EQ(r.argument(AugmentOp::solarize, 9, false), 26);
  EXPECT_DOUBLE_EQ(r.argument(AugmentOp::solarize_add, 9, false), 99);
  EXPECT_DOUBLE_EQ(r.argument(AugmentOp::colour, 9, false), 1.81);
  EXPECT_NEAR(r.argument(AugmentOp::sharpness, 9, true), 0.19, 1e-12);
  EXPECT_DOUBLE_EQ(r.argument(AugmentOp::contrast, 10, true), 0.1);
  EXPECT_DOUBLE_EQ(r.argument(AugmentOp::shear_x, 9, true), -0.27);
  EXPECT_DOUBLE_EQ(r.argument(AugmentOp::translate_y, 10, false), 0.45);
}

TEST(Crops, LieInsideAndKeepToTheirRange) {
  Random random(1);
  for (const auto& [width, height] : {std::pair(500, 375), {32, 32}, {3, 400}, {1, 1}, {1000, 2}}) {
    for (int i = 0; i < 300; ++i) {
      const Part part = random_part(width, height, {}, random);
      ASSERT_GE(part.x, 0);
      ASSERT_GE(part.y, 0);
      ASSERT_GE(part.width, 1);
      ASSERT_GE(part.height, 1);
      ASSERT_LE(part.x + part.width, width);
      ASSERT_LE(part.y + part.height, height);
    }
  }
}

TEST(Crops, APaddedCropIsTheShiftedPicture) {
  Image image(6, 6);
  for (std::size_t i = 0; i < image.pixels().size(); ++i) {
    image.pixels()[i] = static_cast<std::uint8_t>(i + 1);
  }
  Random random(2);
  bool moved = false;
  for (int i = 0; i < 50; ++i) {
    const Image shifted = pad_and_crop(image.view(), 2, {200, 201, 202}, random);
    // Every pixel is the fill colour or the original's at one common distance.
    int matches = 0;
    for (int dy = -2; dy <= 2; ++dy) {
      for (int dx = -2; dx <= 2; ++dx) {
        bool fits = true;
        for (int y = 0; y < 6 && fits; ++y) {
          for (int x = 0; x < 6 && fits; ++x) {
            const int fx = x + dx, fy = y + dy;
            const bool inside = fx >= 0 && fy >= 0 && fx < 6 && fy < 6;
            const int expected = inside ? image.row(fy)[3 * fx] : 200;
            fits = shifted.row(y)[3 * x] == expected;
          }
        }
        matches += fits;
      }
    }
    EXPECT_EQ(matches, 1);
    moved = moved || !(shifted == image);
  }
  EXPECT_TRUE(moved);
  EXPECT_EQ(pad_and_crop(image.view(), 0, {}, random), image);
}

TEST(Chains, WithoutAugmentationArePlainNormalising) {
  const Image image(8, 8, 10, 20, 30);
  Random random(0);
  std::vector<float> planes(3 * 64), expected(3 * 64);
  TrainTransform(Augmentation::none(), 8, {})(image.view(), random, planes.data());
  Normaliser({})(image.view(), expected.data());
  EXPECT_EQ(planes, expected);
  EXPECT_EQ(Normaliser({}).picture(planes.data(), 8, 8), image);
}

TEST(Chains, FlipAboutHalfOfThePictures) {
  Image image(8, 8);
  image.row(0)[0] = 255;
  Augmentation flips = Augmentation::none();
  flips.flip = 0.5;
  const TrainTransform transform(flips, 8, {});
  int flipped = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    Random random(5, i);
    flipped += transform.picture(image.view(), random).row(0)[21] == 255;
  }
  EXPECT_NEAR(flipped, 500, 5 * 16);
}

TEST(Chains, TheRecipeErasesAQuarter) {
  const Image image(16, 16, 128, 128, 128);
  const TrainTransform transform(Augmentation::recipe(), 16, {});
  Augmentation kept = Augmentation::recipe();
  kept.erasing.reset();
  const TrainTransform without(kept, 16, {});
  int erased = 0;
  std::vector<float> a(3 * 256), b(3 * 256);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    Random first(6, i), second(6, i);
    transform(image.view(), first, a.data());
    without(image.view(), second, b.data());
    erased += a != b;
  }
  EXPECT_NEAR(erased, 250, 5 * 14);
}

TEST(Chains, ColourJitterStaysWithinItsFactors) {
  for (std::uint64_t i = 0; i < 200; ++i) {
    Random random(7, i);
    Image image(4, 4, 100, 100, 100);
    ColourJitter{}(image, random);
    const int value = image.pixels()[0];  // grey: contrast and saturation change nothing
    EXPECT_GE(value, 59);
    EXPECT_LE(value, 140);
  }
}

}  // namespace
