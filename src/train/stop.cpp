#include "train/stop.h"

#include <unistd.h>

namespace mhla::train {
namespace {

volatile std::sig_atomic_t g_signal = 0;

void on_signal(int number) {
  if (g_signal != 0) ::_exit(128 + number);
  g_signal = number;
}

}  // namespace

StopSignals::StopSignals() {
  g_signal = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, &interrupt_);
  ::sigaction(SIGTERM, &action, &terminate_);
}

StopSignals::~StopSignals() {
  ::sigaction(SIGINT, &interrupt_, nullptr);
  ::sigaction(SIGTERM, &terminate_, nullptr);
}

int StopSignals::requested() { return g_signal; }

}  // namespace mhla::train
