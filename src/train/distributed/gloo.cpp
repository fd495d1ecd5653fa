// Gloo: processes on CPUs. The code is inside LibTorch; the headers are Debian's libgloo-dev.
#ifndef USE_C10D_GLOO  // LibTorch's own CMake files may say it
#define USE_C10D_GLOO
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "train/distributed/group.h"

namespace mhla::train {

c10::intrusive_ptr<c10d::Backend> make_gloo(const StorePointer& store,
                                            const Rendezvous& rendezvous) {
  const auto options = c10d::ProcessGroupGloo::Options::create();
  // The interface towards the first process: the machine's own name may lead nowhere.
  options->devices.push_back(rendezvous.address == "127.0.0.1" || rendezvous.address == "localhost"
                                 ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                 : c10d::ProcessGroupGloo::createDefaultDevice());
  options->threads = 2;
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rendezvous.rank, rendezvous.world,
                                                     options);
}

}  // namespace mhla::train
