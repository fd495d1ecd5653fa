// The short forward of one element type; each file that instantiates this compiles alone.
#pragma once

#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/dense_short_forward.cuh"

namespace mhla::cuda::sm90 {

template <typename T, int D, bool kShared = false>
void launch_short_width(const ShortArgs& args, void* stream) {
  const auto kernel = args.pairs ? dense_short_kernel<T, D, true, kShared>
                                 : dense_short_kernel<T, D, false, kShared>;
  const int bytes = short_plan(D, args.pairs != 0, kShared).bytes;
  allow_shared(reinterpret_cast<const void*>(kernel), bytes);
  launch<ShortArgs>(kernel, {.x = args.grid}, kShortThreads, bytes, stream, args);
}

template <typename T>
void launch_short(int width, const ShortArgs& args, void* stream) {
  if (args.tokens != nullptr) {
    if (width == 64) return launch_short_width<T, 64, true>(args, stream);
    if (width == 72) return launch_short_width<T, 72, true>(args, stream);
    fail(ErrorCode::internal, "cuda.dense", "no short kernel with row factors for width ", width);
  }
  switch (width) {
    case 32: return launch_short_width<T, 32>(args, stream);
    case 64: return launch_short_width<T, 64>(args, stream);
    case 72: return launch_short_width<T, 72>(args, stream);
    case 96: return launch_short_width<T, 96>(args, stream);
  }
  fail(ErrorCode::internal, "cuda.dense", "no short kernel for width ", width);
}

}  // namespace mhla::cuda::sm90
