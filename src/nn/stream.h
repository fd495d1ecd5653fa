// The caller's CUDA stream, without c10::cuda, so that it compiles against a PyTorch without CUDA.
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>

#include "mhla/mhla.h"

namespace mhla::nn {

inline Stream current_stream(const c10::Device& device) {
  if (device.is_cpu()) return nullptr;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStream(device).native_handle();
}

}  // namespace mhla::nn
