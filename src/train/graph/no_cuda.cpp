// Where LibTorch has no CUDA.
#include "mhla/error.h"
#include "train/graph/graph.h"

namespace mhla::train {

std::unique_ptr<StepGraph> make_step_graph() {
  fail(ErrorCode::unsupported, "train", "train.graph: this build has no CUDA graphs");
}

std::string no_step_graph(c10::Device device) {
  return device.is_cuda() ? "this build has no CUDA graphs: build against a PyTorch for CUDA"
                          : "there is no GPU in use";
}

}  // namespace mhla::train
