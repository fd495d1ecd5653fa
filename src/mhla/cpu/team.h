// Threads that work on one call: dynamic loops with a barrier behind each.
#pragma once

#include <atomic>

#include "mhla/cpu/geometry.h"

namespace mhla::cpu {

// Threads a call may use: what the plan asks for, or OpenMP's current maximum.
int thread_count(int wanted);

class Team {
 public:
  Team() = default;  // one thread alone
  int rank() const { return rank_; }
  int size() const { return size_; }

  // Calls f(i) for i < count, spread over the team; all calls are done on return. Who does what is
  // not determined, so f(i) must not depend on it.
  template <typename F>
  void each(Index count, F&& f) {
    if (size_ == 1) {
      for (Index i = 0; i < count; ++i) f(i);
      return;
    }
    std::atomic<Index>& next = counters_[phase_ % 3];
    for (Index i = next.fetch_add(1); i < count; i = next.fetch_add(1)) f(i);
    finish_phase();
  }

  static void run(int threads, void (*body)(void* context, Team& team), void* context);

 private:
  void finish_phase();

  std::atomic<Index>* counters_ = nullptr;  // three, used in turn
  Index phase_ = 0;
  int rank_ = 0, size_ = 1;
};

}  // namespace mhla::cpu
