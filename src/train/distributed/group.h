// Processes joined by PyTorch's c10d: who they are, and the back end that carries their tensors.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace mhla::train {

// What torchrun, MPI wrappers and `mhla train --processes` put into the environment.
struct Rendezvous {
  int rank = 0, world = 1, local_rank = 0;
  std::string address = "127.0.0.1";
  std::uint16_t port = 29500;
  bool hosted = false;  // torchrun itself keeps the store

  // RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT; one process where none is set. Half of
  // them, or a rank beyond the world, is an error.
  static Rendezvous from_environment();
};

// Waits until all have come. NCCL on GPUs, Gloo elsewhere; throws Error(unsupported) where this
// build lacks it.
c10::intrusive_ptr<c10d::Backend> join(const Rendezvous& rendezvous, c10::Device device);

// One of each is in the build, or a stub that throws.
using StorePointer = c10::intrusive_ptr<c10d::Store>;
c10::intrusive_ptr<c10d::Backend> make_gloo(const StorePointer& store,
                                            const Rendezvous& rendezvous);
c10::intrusive_ptr<c10d::Backend> make_nccl(const StorePointer& store, const Rendezvous& rendezvous,
                                            c10::Device device);

}  // namespace mhla::train
