// Teams are OpenMP's, so that a host program's own setting of threads holds here as well.
#include "mhla/cpu/team.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace mhla::cpu {

#ifdef _OPENMP

int thread_count(int wanted) { return wanted > 0 ? wanted : omp_get_max_threads(); }

void Team::finish_phase() {
#pragma omp barrier
  // Everybody has left this phase's counter, and nobody reaches the one after the next before the
  // next barrier.
  if (rank_ == 0) counters_[(phase_ + 2) % 3].store(0);
  ++phase_;
}

void Team::run(int threads, void (*body)(void*, Team&), void* context) {
  Team alone;
  if (threads <= 1) return body(context, alone);
  std::atomic<Index> counters[3] = {0, 0, 0};
#pragma omp parallel num_threads(threads)
  {
    Team team;
    team.counters_ = counters;
    team.rank_ = omp_get_thread_num();
    team.size_ = omp_get_num_threads();
    body(context, team);
  }
}

#else

int thread_count(int) { return 1; }
void Team::finish_phase() {}
void Team::run(int, void (*body)(void*, Team&), void* context) {
  Team alone;
  body(context, alone);
}

#endif

}  // namespace mhla::cpu
