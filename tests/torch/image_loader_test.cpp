// Batches of pictures as tensors.
#include "data/image_loader.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace {

TEST(ImageLoader, GivesBatchesOfItsOwnMemory) {
  mhla::data::ImageLoaderOptions options;
  options.source.samples = 20;
  options.image_size = 16;
  options.batch = 8;
  options.workers = 2;
  options.train = false;
  const auto loader = mhla::data::make_image_loader(options);
  EXPECT_EQ(loader->size(), 20);
  EXPECT_EQ(loader->classes().size(), 10U);
  ASSERT_EQ(loader->batches_per_epoch(), 3);
  std::vector<mhla::data::Batch> batches;
  for (int i = 0; i < 4; ++i) batches.push_back(loader->next());
  const std::vector<std::int64_t> sizes{8, 8, 4, 8};
  for (std::size_t i = 0; i < 4; ++i) {
    const at::Tensor image = batches[i].tensors.at("image");
    const at::Tensor target = batches[i].tensors.at("target");
    EXPECT_EQ(batches[i].samples, sizes[i]);
    EXPECT_EQ(image.sizes(), at::IntArrayRef({sizes[i], 3, 16, 16}));
    EXPECT_EQ(image.scalar_type(), at::kFloat);
    EXPECT_EQ(target.sizes(), at::IntArrayRef({sizes[i]}));
    EXPECT_EQ(target.scalar_type(), at::kLong);
    EXPECT_TRUE(image.isfinite().all().item<bool>());
    EXPECT_EQ(image.is_pinned(), at::hasCUDA());
  }
  // Evaluation starts again with the same pictures, in other memory.
  EXPECT_TRUE(at::equal(batches[0].tensors.at("image"), batches[3].tensors.at("image")));
  EXPECT_NE(batches[0].tensors.at("image").data_ptr(), batches[3].tensors.at("image").data_ptr());
  loader->seek(5, 2);
  EXPECT_TRUE(at::equal(loader->next().tensors.at("target"), batches[2].tensors.at("target")));
}

}  // namespace
