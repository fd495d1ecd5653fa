// The forward by positions of one element type; each file that instantiates this compiles alone.
#pragma once

#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/dense_position_forward.cuh"

namespace mhla::cuda::sm90 {

template <typename T, bool kShared, Local kLocal>
void launch_position_kernel(const PositionArgs& args, void* stream) {
  const auto kernel = dense_position_kernel<T, kShared, kLocal>;
  constexpr int kBytes = position_plan().bytes;
  allow_shared(reinterpret_cast<const void*>(kernel), kBytes);
  launch<PositionArgs>(kernel, {.x = args.grid}, kShortThreads, kBytes, stream, args);
}

template <typename T>
void launch_position(bool shared, Local local, const PositionArgs& args, void* stream) {
  switch (local) {
    case Local::none:
      return shared ? launch_position_kernel<T, true, Local::none>(args, stream)
                    : launch_position_kernel<T, false, Local::none>(args, stream);
    case Local::after:
      return shared ? launch_position_kernel<T, true, Local::after>(args, stream)
                    : launch_position_kernel<T, false, Local::after>(args, stream);
    case Local::beside:
      return shared ? launch_position_kernel<T, true, Local::beside>(args, stream)
                    : launch_position_kernel<T, false, Local::beside>(args, stream);
  }
  fail(ErrorCode::internal, "cuda.dense", "no forward by positions");
}

}  // namespace mhla::cuda::sm90
