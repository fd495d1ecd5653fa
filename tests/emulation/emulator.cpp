// Fibers, barriers and deferred copies of the emulated multiprocessor (x86-64, System V).
#include "emulator.h"

#include <sys/mman.h>

#include <cuda_runtime.h>
#include <random>

Index3 threadIdx, blockIdx, gridDim;

namespace mhla::cuda {
alignas(1024) unsigned char shared[228 * 1024];  // what kernels declare as dynamic shared memory
}

// Saves the registers a function must keep, changes stacks, restores them.
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.globl emulator_switch
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace emulator {
namespace {

constexpr int kMostThreads = 1024, kWarps = kMostThreads / 32, kBarriers = 16;
constexpr std::size_t kStack = 128 << 10;

struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
  // True for the thread that completes it.
  bool arrive(int expected) {
    if (++arrived < expected) return false;
    release();
    return true;
  }
  void release() {
    arrived = 0;
    ++generation;
  }
};

struct Copy {
  void* to;
  const void* from;
  bool valid;
};

struct Fiber {
  void* stack = nullptr;
  bool done = false;
  const Barrier* waiting = nullptr;
  unsigned generation = 0;
  std::vector<Copy> open;
  std::vector<std::vector<Copy>> groups;
};

Fiber fibers[kMostThreads];
Lane lanes[kWarps][32];
Barrier block_barrier, warp_barriers[kWarps], named_barriers[kBarriers];
int alive, warp_alive[kWarps], current;
void* scheduler;
const std::function<void()>* kernel_of_fibers;

void wait_at(Barrier& barrier, int expected) {
  const unsigned generation = barrier.generation;
  if (barrier.arrive(expected)) return;
  Fiber& fiber = fibers[current];
  fiber.waiting = &barrier;
  fiber.generation = generation;
  emulator_switch(&fiber.stack, scheduler);
}

void fiber_main() {
  (*kernel_of_fibers)();
  Fiber& fiber = fibers[current];
  fiber.done = true;
  Barrier& warp_barrier = warp_barriers[current / 32];
  const int left = --warp_alive[current / 32];
  if (--alive > 0 && block_barrier.arrived == alive) block_barrier.release();
  if (left > 0 && warp_barrier.arrived == left) warp_barrier.release();
  emulator_switch(&fiber.stack, scheduler);
  stop("a finished thread ran again");
}

void run_block(int threads, std::mt19937& random) {
  static char* stacks = static_cast<char*>(mmap(
      nullptr, kMostThreads * kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  alive = threads;
  block_barrier = {};
  std::vector<int> order(threads);
  for (int t = 0; t < threads; ++t) {
    order[t] = t;
    warp_barriers[t / 32] = {};
    warp_alive[t / 32] = 32;
    void** top = reinterpret_cast<void**>(stacks + (t + 1) * kStack) - 2;
    *top = reinterpret_cast<void*>(fiber_main);
    fibers[t] = Fiber{.stack = top - 6};
  }
  for (Barrier& barrier : named_barriers) barrier = {};
  std::shuffle(order.begin(), order.end(), random);
  while (alive > 0) {
    bool progress = false;
    for (const int t : order) {
      Fiber& fiber = fibers[t];
      if (fiber.done || (fiber.waiting && fiber.waiting->generation == fiber.generation)) continue;
      fiber.waiting = nullptr;
      current = t;
      threadIdx = {static_cast<unsigned>(t), 0, 0};
      emulator_switch(&scheduler, fiber.stack);
      progress = true;
    }
    if (!progress) stop("deadlock: not all threads reach a barrier");
  }
}

}  // namespace

void stop(const char* why) {
  std::fprintf(stderr, "emulator: %s\n", why);
  std::abort();
}

void run(std::int64_t x, std::int64_t y, std::int64_t z, int threads, int shared_bytes,
         const std::function<void()>& kernel) {
  static std::mt19937 random(1);
  constexpr int kShared = sizeof mhla::cuda::shared;
  if (shared_bytes > kShared) stop("more shared memory than a Hopper multiprocessor has");
  kernel_of_fibers = &kernel;
  gridDim = {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
  for (std::int64_t n = 0; n < x * y * z; ++n) {
    blockIdx = {static_cast<unsigned>(n % x), static_cast<unsigned>(n / x % y),
                static_cast<unsigned>(n / x / y)};
    std::memset(mhla::cuda::shared, 0xff, kShared);
    run_block(threads, random);
    for (int i = shared_bytes; i < kShared; ++i) {
      if (mhla::cuda::shared[i] != 0xff) stop("a kernel wrote past its shared memory");
    }
  }
}

Lane* warp() { return lanes[current / 32]; }
int lane() { return current % 32; }
void sync_warp() { wait_at(warp_barriers[current / 32], warp_alive[current / 32]); }
void sync_warps(int barrier, int threads) { wait_at(named_barriers[barrier], threads); }

void copy(void* to, const void* from, bool valid) {
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 ||
      (valid && reinterpret_cast<std::uintptr_t>(from) % 16 != 0)) {
    stop("a misaligned asynchronous copy");
  }
  fibers[current].open.push_back({to, from, valid});
}
void commit() {
  Fiber& fiber = fibers[current];
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}
void wait(int pending) {
  auto& groups = fibers[current].groups;
  while (static_cast<int>(groups.size()) > pending) {
    for (const Copy& one : groups.front()) {
      if (one.valid) std::memcpy(one.to, one.from, 16);
      else std::memset(one.to, 0, 16);
    }
    groups.erase(groups.begin());
  }
}

}  // namespace emulator

void emulated_sync_threads() { emulator::wait_at(emulator::block_barrier, emulator::alive); }
