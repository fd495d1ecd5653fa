// Streams of f64 problems.
#include "mhla/core/state_scalar.h"

namespace mhla::streaming {

std::unique_ptr<Engine<double>> make_engine_f64(const std::shared_ptr<const Setup>& setup) {
  return std::make_unique<HostEngine<ScalarOps<double>>>(setup);
}

}  // namespace mhla::streaming
