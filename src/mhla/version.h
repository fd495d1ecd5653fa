// The version of the library, also read by CMakeLists.txt.
#pragma once

#define MHLA_VERSION_MAJOR 0
#define MHLA_VERSION_MINOR 1
#define MHLA_VERSION_PATCH 0

namespace mhla {

const char* version();  // "0.1.0"

}  // namespace mhla
