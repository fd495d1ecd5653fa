// `mhla info FILE`
#pragma once

#include <string>

namespace mhla::cli {

// Prints what a checkpoint holds; any format that io::Checkpoint::open reads.
void info_checkpoint(const std::string& path, bool json);

}  // namespace mhla::cli
