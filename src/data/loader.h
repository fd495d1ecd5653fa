// What a trainer draws its batches from.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "data/share.h"

namespace mhla::data {

struct Batch {
  // Of pictures: "image" [B, 3, H, W] f32, normalised; "target" [B] int64, or [B, classes] f32.
  std::map<std::string, at::Tensor> tensors;
  std::int64_t samples = 0;
};

// The same seed, epoch and batch number give the same batch.
class Loader {
 public:
  virtual ~Loader() = default;
  virtual std::int64_t batches_per_epoch() const = 0;
  virtual void seek(std::int64_t epoch, std::int64_t batch) = 0;  // next() gives that batch
  virtual Batch next() = 0;  // goes on into the next epoch by itself
};

}  // namespace mhla::data
