// NCCL: processes on GPUs.
#ifndef USE_C10D_NCCL  // LibTorch's own CMake files may say it
#define USE_C10D_NCCL
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "train/distributed/group.h"

namespace mhla::train {

c10::intrusive_ptr<c10d::Backend> make_nccl(const StorePointer& store, const Rendezvous& rendezvous,
                                            c10::Device device) {
  const auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      store, rendezvous.rank, rendezvous.world, c10d::ProcessGroupNCCL::Options::create());
  backend->setBoundDeviceId(device);  // collectives without tensors know their GPU
  return backend;
}

}  // namespace mhla::train
