// The version as text.
#include "mhla/version.h"

#define MHLA_TEXT_OF(x) #x
#define MHLA_TEXT(x) MHLA_TEXT_OF(x)

namespace mhla {

const char* version() {
  return MHLA_TEXT(MHLA_VERSION_MAJOR) "." MHLA_TEXT(MHLA_VERSION_MINOR) "." MHLA_TEXT(
      MHLA_VERSION_PATCH);
}

}  // namespace mhla
