// Checkpoints of torch.save: a zip file that holds a pickle and one entry per storage.
#pragma once

#include "io/checkpoint.h"

namespace mhla::io {

// Tensors of nested dicts and lists get dotted names: {"ema": {"w": t}} gives "ema.w" in the
// section "ema". Numbers and texts beside them become metadata. The pickle is read as data
// (io/pickle.h).
Checkpoint read_pytorch(const FilePointer& file);

}  // namespace mhla::io
