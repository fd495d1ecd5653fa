// Launch of the causal forward by columns.
#include "mhla/cuda/sm90/causal_columns.cuh"

#include "mhla/cuda/runtime.h"

namespace mhla::cuda::sm90 {

void launch_causal_columns(int grid, const ColumnsArgs& args, void* stream) {
  allow_shared(reinterpret_cast<const void*>(causal_columns), ColumnsPlan::kBytes);
  launch(causal_columns, {.x = grid}, kColumnsThreads, ColumnsPlan::kBytes, stream, args);
}

}  // namespace mhla::cuda::sm90
