// `--processes N`: this program again, N times, joined to one job.
#pragma once

#include <string>
#include <vector>

namespace mhla::cli {

// Starts `command` N times with the variables that torchrun sets, on a free port of this machine,
// and waits. When one fails, the others are ended and an Error names it. Ctrl-C reaches all of
// them; SIGTERM is passed on. Returns when all have ended well.
void launch(const std::vector<std::string>& command, int processes);

// The command line of this process, without `--processes N`.
std::vector<std::string> own_command_without_processes();

}  // namespace mhla::cli
