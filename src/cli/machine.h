// What this machine and this build are.
#pragma once

#include <string>
#include <vector>

namespace mhla::cli {

std::string compiler();
std::string cpu_model();                  // "unknown" where the system does not say
std::vector<std::string> cpu_features();  // the instruction sets that matter here
unsigned cpu_threads();

}  // namespace mhla::cli
