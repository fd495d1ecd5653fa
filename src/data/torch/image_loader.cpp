// The tensors around the batches.
#include "data/image_loader.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>

namespace mhla::data {
namespace {

struct Tensors {
  at::Tensor image, target;
};

BatchMemory tensor_memory(std::int64_t samples, int size, bool pinned) {
  const auto tensors = std::make_shared<Tensors>();
  const auto options = at::TensorOptions().pinned_memory(pinned);
  tensors->image = at::empty({samples, 3, size, size}, options.dtype(at::kFloat));
  tensors->target = at::empty({samples}, options.dtype(at::kLong));
  return {tensors->image.data_ptr<float>(), tensors->target.data_ptr<std::int64_t>(), tensors};
}

class TorchLoader final : public ImageLoader {
 public:
  explicit TorchLoader(const ImageLoaderOptions& options)
      : batches_(options,
                 [size = options.image_size, pinned = at::hasCUDA()](std::int64_t samples) {
                   return tensor_memory(samples, size, pinned);
                 }) {}

  const std::vector<std::string>& classes() const override { return batches_.set().classes(); }
  std::int64_t size() const override { return batches_.set().size(); }
  std::int64_t batches_per_epoch() const override { return batches_.batches_per_epoch(); }
  void seek(std::int64_t epoch, std::int64_t batch) override { batches_.seek(epoch, batch); }

  Batch next() override {
    const ImageBatches::Filled filled = batches_.next();
    const auto tensors = std::static_pointer_cast<Tensors>(filled.memory.owner);
    return {.tensors = {{"image", tensors->image.narrow(0, 0, filled.samples)},
                        {"target", tensors->target.narrow(0, 0, filled.samples)}},
            .samples = filled.samples};
  }

 private:
  ImageBatches batches_;
};

}  // namespace

std::unique_ptr<ImageLoader> make_image_loader(const ImageLoaderOptions& options) {
  return std::make_unique<TorchLoader>(options);
}

}  // namespace mhla::data
