// Where LibTorch has no NCCL.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mhla/error.h"
#include "train/distributed/group.h"

namespace mhla::train {

c10::intrusive_ptr<c10d::Backend> make_nccl(const StorePointer&, const Rendezvous&, c10::Device) {
  fail(ErrorCode::unsupported, "train",
       "several processes on GPUs need NCCL, which this build lacks: build against a PyTorch for "
       "CUDA");
}

}  // namespace mhla::train
