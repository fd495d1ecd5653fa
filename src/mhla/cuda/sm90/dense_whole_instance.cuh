// The whole-head backward of one element type; each file that instantiates this compiles alone.
#pragma once

#include "mhla/cuda/sm90/dense_whole.cuh"

namespace mhla::cuda::sm90 {

template <typename T>
void launch_whole_type(int width, int grid, const WholeArgs& args, void* stream) {
  const auto run = [&](auto* kernel, int bytes) {
    allow_shared(reinterpret_cast<const void*>(kernel), bytes);
    launch(kernel, {.x = grid}, kWholeThreads, bytes, stream, args);
  };
  const bool shared = args.row_factor != nullptr;
  switch (width) {
    case 64:
      return run(shared ? dense_whole_kernel<T, 64, true> : dense_whole_kernel<T, 64, false>,
                 WholeShared<64>::kBytes);
    case 72:
      return run(shared ? dense_whole_kernel<T, 72, true> : dense_whole_kernel<T, 72, false>,
                 WholeShared<72>::kBytes);
    case 96:
      return run(shared ? dense_whole_kernel<T, 96, true> : dense_whole_kernel<T, 96, false>,
                 WholeShared<96>::kBytes);
  }
  fail(ErrorCode::internal, "cuda.dense", "no kernel for width ", width);
}

}  // namespace mhla::cuda::sm90
