// Ctrl-C and SIGTERM end a run after the step; a second one ends it at once.
#pragma once

#include <csignal>

namespace mhla::train {

class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();

  static int requested();  // the signal's number, or 0

 private:
  struct sigaction interrupt_, terminate_;  // as they were before
};

}  // namespace mhla::train
