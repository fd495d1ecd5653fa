// What the CUDA backend offers to the planner.
#include "mhla/cuda/implementations.h"

namespace mhla {

std::vector<const Implementation*> cuda_implementations() {
  // Without a device every problem is refused by the plan's prepare step; with none compiled in,
  // no_cuda.cpp is linked instead of this file.
  return {&cuda::fused_implementation(),   &cuda::causal_implementation(),
          &cuda::columns_implementation(), &cuda::dense_implementation(),
          &cuda::linear_implementation(),  &cuda::tf32_implementation()};
}

}  // namespace mhla
