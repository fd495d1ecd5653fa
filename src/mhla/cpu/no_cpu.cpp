// No SIMD kernels are compiled in: the reference serves every problem on the CPU.
#include "mhla/core/implementation.h"
#include "mhla/core/state_scalar.h"

namespace mhla {

std::vector<const Implementation*> cpu_implementations() { return {}; }
const char* cpu_absence() {
  return "this build has no CPU kernels (configure where Highway's headers are, libhwy-dev)";
}

std::unique_ptr<streaming::Engine<float>> streaming::make_engine_f32(
    const std::shared_ptr<const Setup>& setup) {
  return std::make_unique<HostEngine<ScalarOps<float>>>(setup);
}

}  // namespace mhla
