// A multiprocessor on the CPU: the threads of a thread block are fibers that take turns at barriers
// and at the instructions of a warp, in a random order, so that a missing barrier shows.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace emulator {

// Runs a kernel over a grid. Shared memory starts as NaN; writing past `shared_bytes` ends the
// program, and so does a barrier that not all threads reach.
void run(std::int64_t x, std::int64_t y, std::int64_t z, int threads, int shared_bytes,
         const std::function<void()>& kernel);

void sync_warp();
void sync_warps(int barrier, int threads);

// What the lanes of the calling warp show each other between two sync_warp.
struct Lane {
  std::uint32_t a[4], b[2], word;
  const void* row;
};
Lane* warp();
int lane();

// Asynchronous copies happen when they are waited for, so that a missing wait shows.
void copy(void* to, const void* from, bool valid);
void commit();
void wait(int pending);

[[noreturn]] void stop(const char* why);

}  // namespace emulator

namespace mhla::cuda {
extern unsigned char shared[];  // what kernels declare as dynamic shared memory
}
