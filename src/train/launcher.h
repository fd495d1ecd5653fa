// What `mhla train --processes` tells its workers beside torchrun's variables.
#pragma once

namespace mhla::train {

// The number of the process that started them, with which they end.
constexpr const char* kLauncher = "MHLA_LAUNCHER";

}  // namespace mhla::train
