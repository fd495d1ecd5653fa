// Stands in for the CUDA backend where it is not compiled: no implementations, no devices.
#include "mhla/core/device_memory.h"
#include "mhla/core/implementation.h"
#include "mhla/core/state_engine.h"
#include "mhla/norms.h"
#include "mhla/token_maps.h"

namespace mhla {
namespace {

[[noreturn]] void refuse(const char* where) { fail(ErrorCode::unsupported, where, cuda_absence()); }

}  // namespace

std::vector<const Implementation*> cuda_implementations() { return {}; }
const char* cuda_absence() {
  return "this build has no CUDA backend (configure with MHLA_CUDA=ON)";
}

std::vector<std::string> cuda_devices() { return {}; }
void* device_alloc(std::size_t) { refuse("device_alloc"); }
void device_free(void*) { refuse("device_free"); }
void device_upload(void*, const void*, std::size_t) { refuse("device_upload"); }
void device_download(void*, const void*, std::size_t) { refuse("device_download"); }
void device_synchronize() { refuse("device_synchronize"); }
void grid_convolution(const GridConvolution&, Stream) { refuse("grid_convolution"); }
void grid_convolution_gradient(const GridConvolutionGradient&, Stream) {
  refuse("grid_convolution_gradient");
}
void rotary_turn(const RotaryTurn&, Stream) { refuse("rotary_turn"); }
void row_norm(const RowNorm&, Stream) { refuse("row_norm"); }
void row_norm_backward(const RowNormBackward&, Stream) { refuse("row_norm_backward"); }
void focus(const Focus&, Stream) { refuse("focus"); }
void focus_backward(const FocusBackward&, Stream) { refuse("focus_backward"); }
bool is_capturing(Stream) { return false; }

std::unique_ptr<streaming::Engine<float>> streaming::make_cuda_engine(
    const std::shared_ptr<const Setup>& setup) {
  fail(ErrorCode::unsupported, "state", "device: got ", to_string(setup->problem.device), ", but ",
       cuda_absence(), "; its states live on the CPU");
}

}  // namespace mhla
