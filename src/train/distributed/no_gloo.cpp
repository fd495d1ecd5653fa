// Where Gloo's headers are missing.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mhla/error.h"
#include "train/distributed/group.h"

namespace mhla::train {

c10::intrusive_ptr<c10d::Backend> make_gloo(const StorePointer&, const Rendezvous&) {
  fail(ErrorCode::unsupported, "train",
       "several processes on a CPU need Gloo, which this build lacks: install libgloo-dev and "
       "build again");
}

}  // namespace mhla::train
