// libmhla_torch, loaded when a command needs the networks: the program starts fast and runs without
// LibTorch.
#pragma once

namespace mhla::cli {

// A function that the library exports; throws with the way out where there is no library or it is
// of another version.
void* torch_function(const char* name);

}  // namespace mhla::cli
