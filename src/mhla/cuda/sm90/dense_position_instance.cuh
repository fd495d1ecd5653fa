// The forward by positions of one element type; each file that instantiates this compiles alone.
#pragma once

#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/dense_position_forward.cuh"

namespace mhla::cuda::sm90 {

template <typename T, bool kShared, bool kLocal>
void launch_position_kernel(const PositionArgs& args, void* stream) {
  constexpr PositionTeam kTeam = position_team(std::is_same_v<T, bf16>, kShared, kLocal);
  constexpr int kBytes = position_plan(kTeam).bytes;
  const auto kernel = dense_position_kernel<T, kShared, kLocal>;
  allow_shared(reinterpret_cast<const void*>(kernel), kBytes);
  launch<PositionArgs>(kernel, {.x = args.grid}, 128 * (kTeam.all() + 1), kBytes, stream, args);
}

template <typename T>
void launch_position(bool shared, const PositionArgs& args, void* stream) {
  const bool local = args.tap_weight != nullptr;
  if (shared) {
    return local ? launch_position_kernel<T, true, true>(args, stream)
                 : launch_position_kernel<T, true, false>(args, stream);
  }
  return local ? launch_position_kernel<T, false, true>(args, stream)
               : launch_position_kernel<T, false, false>(args, stream);
}

}  // namespace mhla::cuda::sm90
