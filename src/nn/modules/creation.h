// Where layers put their weights while they are built, and whether they fill them.
#pragma once

#include <c10/core/Device.h>

namespace mhla::nn {

struct Creation {
  c10::Device device = c10::kCPU;  // meta: shapes without memory
  bool fill = true;                // false: whoever builds the layers fills their weights
};

// What holds in this thread. Only the large weights follow it; a model moves the rest with `to`.
const Creation& creation();

class CreateWith {
 public:
  explicit CreateWith(Creation creation);
  ~CreateWith();
  CreateWith(const CreateWith&) = delete;
  CreateWith& operator=(const CreateWith&) = delete;

 private:
  Creation before_;
};

}  // namespace mhla::nn
