// CUDA graphs by LibTorch, which gives them memory of their own and knows their random numbers.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include "train/graph/graph.h"

namespace mhla::train {
namespace {

class CudaStepGraph : public StepGraph {
 public:
  std::size_t record(const std::function<void()>& work) override {
    c10::cuda::device_synchronize();
    // What earlier steps left unused would be of no use to the graph, which has its own memory.
    c10::cuda::CUDACachingAllocator::emptyCache();
    // NOTE: thread-local, because the loader's threads pin memory meanwhile, which the global mode
    // forbids. The backward pass of another thread is recorded too: that goes by the stream.
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    work();
    graph_.capture_end();
    std::size_t count = 0;
    C10_CUDA_CHECK(cudaGraphGetNodes(graph_.raw_cuda_graph(), nullptr, &count));
    graph_.instantiate();
    return count;
  }

  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_{/*keep_graph=*/true};  // to count its operations
};

}  // namespace

std::unique_ptr<StepGraph> make_step_graph() { return std::make_unique<CudaStepGraph>(); }

std::string no_step_graph(c10::Device device) {
  return device.is_cuda() ? "" : "there is no GPU in use";
}

}  // namespace mhla::train
