// No SIMD kernels are compiled in: the reference serves every problem on the CPU.
#include "mhla/core/implementation.h"

namespace mhla {

std::vector<const Implementation*> cpu_implementations() { return {}; }

}  // namespace mhla
