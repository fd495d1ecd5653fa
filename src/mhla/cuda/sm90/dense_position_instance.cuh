// The forward by positions of one element type; each file that instantiates this compiles alone.
#pragma once

#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/dense_position_forward.cuh"

namespace mhla::cuda::sm90 {

template <typename T, bool kShared, Local kLocal, int kWarpgroups>
void launch_position_kernel(const PositionArgs& args, void* stream) {
  const auto kernel = dense_position_kernel<T, kShared, kLocal, kWarpgroups>;
  constexpr int kBytes = position_plan(kWarpgroups).bytes;
  allow_shared(reinterpret_cast<const void*>(kernel), kBytes);
  launch<PositionArgs>(kernel, {.x = args.grid}, 128 * (kWarpgroups + 1), kBytes, stream, args);
}

template <typename T, bool kShared>
void launch_position_form(const PositionForm& form, const PositionArgs& args, void* stream) {
  // NOTE: the row sums of other normalisers take four registers more than three warpgroups have.
  if constexpr (std::is_same_v<T, bf16> && kShared) {
    if (form.warpgroups == 3) {
      if (form.local == Local::none) {
        return launch_position_kernel<T, kShared, Local::none, 3>(args, stream);
      }
      return launch_position_kernel<T, kShared, Local::after, 3>(args, stream);
    }
  }
  switch (form.local) {
    case Local::none: return launch_position_kernel<T, kShared, Local::none, 2>(args, stream);
    case Local::after: return launch_position_kernel<T, kShared, Local::after, 2>(args, stream);
    case Local::beside: return launch_position_kernel<T, kShared, Local::beside, 2>(args, stream);
  }
  fail(ErrorCode::internal, "cuda.dense", "no forward by positions");
}

template <typename T>
void launch_position(const PositionForm& form, const PositionArgs& args, void* stream) {
  if (form.shared) return launch_position_form<T, true>(form, args, stream);
  return launch_position_form<T, false>(form, args, stream);
}

}  // namespace mhla::cuda::sm90
