// What the CUDA backend offers to the planner.
#include "mhla/cuda/implementations.h"

namespace mhla {

std::vector<const Implementation*> cuda_implementations() {
  // With none compiled in, no_cuda.cpp is linked instead of this file.
  return {&cuda::fused_implementation(),   &cuda::causal_implementation(),
          &cuda::columns_implementation(), &cuda::dense_implementation(),
          &cuda::linear_implementation(),  &cuda::tf32_implementation()};
}
const char* cuda_absence() { return nullptr; }

}  // namespace mhla
