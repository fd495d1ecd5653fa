// Fibers, barriers, background work and launches of the emulated machine (x86-64, System V).
#include "emulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

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

Index3 threadIdx, blockIdx, blockDim, gridDim;
Fiber* current = nullptr;

namespace {

constexpr std::size_t kStack = 256 << 10;
constexpr unsigned char kPoison = 0xff;  // NaN as bf16, f16 and f32

struct Kernel {
  Invoke invoke;
  std::string name;
  int most_shared = 48 * 1024;
};
std::map<const void*, Kernel> kernels;

std::mt19937 random_bits(1);
double early = 0;          // how likely background work is done at once
bool writes_late = false;  // of bulk stores: not before they must
const char* context = "";
std::vector<Task> tasks;
std::vector<Block*> running;
void* scheduler;
const void* kernel_of_fibers;
const void* args_of_fibers;
bool dependent = false;  // the kernel may run beside the one before
// Launches are numbered. When one that waits before it lets others start has begun, all before it
// have ended.
int launches = 0, settled = 0;
bool starts_others_early = false;
constexpr std::uintptr_t kPage = 4096;
std::map<std::uintptr_t, int> writers;  // of pages: the last launch

bool chance(double probability) {
  return probability > 0 && (random_bits() >> 8) * 0x1p-24 < probability;
}

unsigned char* map_memory(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) stop("no memory");
  return static_cast<unsigned char*>(memory);
}

// Stacks and shared memories are kept from one thread block to the next.
template <typename Make>
auto take(std::vector<std::invoke_result_t<Make>>& kept, Make&& make) {
  if (kept.empty()) return make();
  auto one = kept.back();
  kept.pop_back();
  return one;
}
std::vector<char*> free_stacks;
std::vector<unsigned char*> free_memories;

bool ready(const Fiber& fiber) {
  const Wait& wait = fiber.wait;
  switch (wait.kind) {
    case Wait::nothing:
    case Wait::turn: return true;
    case Wait::barrier: return wait.at->generation != wait.generation;
    case Wait::memory: return wait.memory_at->phase != wait.count;
    case Wait::products: return fiber.block->warpgroups[fiber.thread / 128].done >= wait.count;
    case Wait::bulk:
    case Wait::bulk_read: {
      const auto& left = wait.kind == Wait::bulk ? fiber.bulk_unwritten : fiber.bulk_unread;
      return left.empty() || *left.begin() > wait.count;
    }
  }
  return false;
}

std::string waiting_for(const Fiber& fiber) {
  const Wait& wait = fiber.wait;
  char text[200];
  switch (wait.kind) {
    case Wait::barrier:
      std::snprintf(text, sizeof text, "%s %d (%d of %d threads came)", wait.what, wait.number,
                    wait.at->arrived, wait.at->expected);
      break;
    case Wait::memory:
      std::snprintf(
          text, sizeof text,
          "mbarrier at shared address %d, parity %d (%d of %d arrivals and %d bytes "
          "missing)",
          wait.number, static_cast<int>(wait.count), static_cast<int>(wait.memory_at->pending),
          static_cast<int>(wait.memory_at->expected), static_cast<int>(wait.memory_at->bytes));
      break;
    case Wait::products: return "wgmma.wait_group";
    case Wait::bulk: return "cp.async.bulk.wait_group";
    case Wait::bulk_read: return "cp.async.bulk.wait_group.read";
    default: return "its turn";
  }
  return text;
}

void deadlock() {
  std::fprintf(stderr, "%s\nemulator: deadlock\n  %s\n", context,
               kernels[kernel_of_fibers].name.c_str());
  for (const Block* block : running) {
    for (std::size_t first = 0; first < block->fibers.size();) {
      const auto text = [&](std::size_t t) {
        const Fiber& fiber = *block->fibers[t];
        return fiber.done ? std::string() : waiting_for(fiber);
      };
      const std::string what = text(first);
      std::size_t last = first;
      while (last + 1 < block->fibers.size() && text(last + 1) == what) ++last;
      if (!what.empty()) {
        std::fprintf(stderr, "  block (%u, %u, %u) threads %zu to %zu: %s\n", block->index.x,
                     block->index.y, block->index.z, first, last, what.c_str());
      }
      first = last + 1;
    }
  }
  std::abort();
}

void release(Barrier& barrier) {
  barrier.arrived = 0;
  ++barrier.generation;
}

void switch_to_scheduler() { emulator_switch(&current->stack, scheduler); }

void fiber_main() {
  kernels[kernel_of_fibers].invoke(kernel_of_fibers, args_of_fibers);
  Fiber& fiber = *current;
  if (fiber.block->warpgroups[fiber.thread / 128].done < fiber.products_issued) {
    stop("a thread ended before its products did");
  }
  for (const Task& task : tasks) {
    if (task.owner == &fiber && task.kind == Task::reads_shared) {
      stop("a thread ended while its bulk store may still read shared memory");
    }
  }
  do_copies(fiber, ~std::uint64_t{0});
  fiber.done = true;
  Block& block = *fiber.block;
  if (--block.alive > 0 && block.barrier.arrived == block.alive) release(block.barrier);
  if (--fiber.warp->alive > 0 && fiber.warp->barrier.arrived == fiber.warp->alive) {
    release(fiber.warp->barrier);
    fiber.warp->doing = nullptr;
  }
  switch_to_scheduler();
  stop("a finished thread ran again");
}

Block* make_block(const Index3& index, const Shape& shape) {
  Block* block = new Block;
  block->index = index;
  block->memory = take(free_memories, [] { return map_memory(kWindow); });
  block->dynamic_bytes = static_cast<int>(shape.shared_bytes);
  std::memset(block->memory, kPoison, kWindow);
  const int threads = static_cast<int>(shape.block.x * shape.block.y * shape.block.z);
  block->alive = threads;
  block->warps.resize((threads + 31) / 32);
  block->warpgroups.resize((threads + 127) / 128);
  for (int t = 0; t < threads; ++t) {
    Fiber* fiber = new Fiber;
    fiber->thread = t;
    fiber->block = block;
    fiber->warp = &block->warps[t / 32];
    fiber->warp->alive = std::min(32, threads - t / 32 * 32);
    fiber->stack_memory = take(free_stacks,
                               [] { return reinterpret_cast<char*>(map_memory(kStack)); });
    void** top = reinterpret_cast<void**>(fiber->stack_memory + kStack) - 2;
    *top = reinterpret_cast<void*>(fiber_main);
    fiber->stack = top - 6;
    block->fibers.push_back(fiber);
  }
  return block;
}

void end_block(Block* block) {
  if (dependent && !block->waited) stop("a dependent kernel does not wait for the one before");
  const int used = kReserved + block->static_bytes + block->dynamic_bytes;
  for (int i = 0; i < kWindow; ++i) {
    if (i == kReserved) i = used;
    if (block->memory[i] != kPoison) stop("a kernel wrote outside of its shared memory");
  }
  free_memories.push_back(block->memory);
  for (Fiber* fiber : block->fibers) {
    free_stacks.push_back(fiber->stack_memory);
    delete fiber;
  }
  delete block;
}

// One piece of background work; false if there is none that can be done. Writes to memory may be
// left until nobody can go on without them.
bool work(bool stuck = false) {
  std::vector<Warpgroup*> groups;
  for (Block* block : running) {
    for (Warpgroup& group : block->warpgroups) {
      if (!group.products.empty() && group.products.front()->arrived == 128) {
        groups.push_back(&group);
      }
    }
  }
  std::vector<std::size_t> choices;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (stuck || !writes_late || tasks[i].kind != Task::writes_memory) choices.push_back(i);
  }
  const std::size_t all = choices.size() + groups.size();
  if (all == 0) return false;
  const std::size_t choice = random_bits() % all;
  if (choice < choices.size()) {
    const auto place = tasks.begin() + static_cast<std::ptrdiff_t>(choices[choice]);
    const Task task = std::move(*place);
    tasks.erase(place);
    task.run();
    return true;
  }
  Warpgroup& group = *groups[choice - choices.size()];
  Product* product = group.products.front();
  group.products.pop_front();
  execute(*product);
  ++group.done;
  delete product;
  return true;
}

void run_warp(Block& block, int warp, bool& progress, bool& spins) {
  const int threads = static_cast<int>(block.fibers.size());
  const int count = std::min(32, threads - warp * 32), skip = static_cast<int>(random_bits() % 32);
  for (int i = 0; i < count; ++i) {
    Fiber& fiber = *block.fibers[warp * 32 + (i + skip) % count];
    if (fiber.done || !ready(fiber)) continue;
    if (fiber.wait.kind == Wait::turn) spins = true;
    else progress = true;
    fiber.wait = {};
    current = &fiber;
    const unsigned t = static_cast<unsigned>(fiber.thread);
    threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
    blockIdx = block.index;
    emulator_switch(&scheduler, fiber.stack);
  }
}

// Who runs next. In turns: every warp in a random order, then again. By rank: always the first of
// a random ranking that can go on, background work being one of the ranked; now and then one of
// them gets another rank. A warp then runs as far ahead of another as barriers allow.
class Schedule {
 public:
  explicit Schedule(const std::vector<Block*>& blocks) : by_rank_(random_bits() % 2 == 0) {
    for (Block* block : blocks) {
      for (std::size_t w = 0; w < block->warps.size(); ++w) {
        ranking_.push_back({block, static_cast<int>(w)});
      }
    }
    early = by_rank_ ? 0 : random_bits() % 3 * 0.5;
    writes_late = random_bits() % 2 == 0;
    if (by_rank_) ranking_.push_back({nullptr, 0});
    std::shuffle(ranking_.begin(), ranking_.end(), random_bits);
  }
  // One round; progress: somebody could go on, spins: somebody looked at global memory in vain.
  void round(bool& progress, bool& spins) {
    if (!by_rank_) std::shuffle(ranking_.begin(), ranking_.end(), random_bits);
    for (const auto& [block, warp] : ranking_) {
      if (block != nullptr) run_warp(*block, warp, progress, spins);
      else progress = work() || progress;
      while (chance(early / 4) && work()) progress = true;
      if (by_rank_ && progress) break;
    }
    if (by_rank_ && chance(1. / 64)) {
      std::swap(ranking_[random_bits() % ranking_.size()],
                ranking_[random_bits() % ranking_.size()]);
    }
  }

 private:
  bool by_rank_;
  std::vector<std::pair<Block*, int>> ranking_;
};

// Runs thread blocks until all have ended.
void run_together(const std::vector<Block*>& blocks) {
  running = blocks;
  Schedule schedule(blocks);
  int idle = 0;
  const auto alive = [](const Block* block) { return block->alive > 0; };
  while (std::any_of(blocks.begin(), blocks.end(), alive)) {
    bool progress = false, spins = false;
    schedule.round(progress, spins);
    if (progress || work() || work(/*stuck=*/true)) {
      idle = 0;
      continue;
    }
    constexpr int kPatience = 1000;  // rounds in which threads only look at global memory
    if (std::any_of(blocks.begin(), blocks.end(), alive) && (!spins || ++idle > kPatience)) {
      deadlock();
    }
  }
  for (const Task& task : std::exchange(tasks, {})) {
    if (task.kind != Task::writes_memory) {
      stop("a thread block ended before a copy into its shared memory did");
    }
    task.run();
  }
  for (Block* block : blocks) end_block(block);
  running.clear();
}

}  // namespace

void launch_dependent() { dependent = true; }
void set_context(const char* what) { context = what; }
void set_seed(unsigned seed) { random_bits.seed(seed); }

void stop(const std::string& why) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s\nemulator: %s\n", context, why.c_str());
  if (current != nullptr) {
    std::fprintf(stderr, "  %s\n  thread %d of block (%u, %u, %u)\n",
                 kernels[kernel_of_fibers].name.c_str(), current->thread, blockIdx.x, blockIdx.y,
                 blockIdx.z);
  }
  std::abort();
}

void wait_for(const Wait& wait) {
  current->wait = wait;
  if (wait.kind != Wait::turn && ready(*current)) {
    current->wait = {};
    return;
  }
  switch_to_scheduler();
}

void arrive_at(Barrier& barrier, int expected, const char* what, int number) {
  if (barrier.arrived > 0 && barrier.expected != expected) {
    stop(std::string(what) + " " + std::to_string(number) +
         ": threads disagree on how many come (" + std::to_string(barrier.expected) + " or " +
         std::to_string(expected) + ")");
  }
  barrier.expected = expected;
  if (++barrier.arrived == expected) release(barrier);
}

void wait_at(Barrier& barrier, int expected, const char* what, int number) {
  const unsigned generation = barrier.generation;
  arrive_at(barrier, expected, what, number);
  if (barrier.generation != generation) return;
  wait_for({.kind = Wait::barrier,
            .what = what,
            .number = number,
            .at = &barrier,
            .generation = generation});
}

Block& block_of(const unsigned char* shared) {
  for (Block* block : running) {
    if (shared >= block->memory && shared < block->memory + kWindow) return *block;
  }
  stop("a pointer to no shared memory");
}
void check_waited(const char* what) {
  if (dependent && !current->block->waited) {
    stop(std::string(what) + " of a dependent kernel that has not waited for the one before");
  }
}

void check_given(const char* what, const unsigned char* at, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(at);
  const auto found = writers.lower_bound(first / kPage * kPage);
  for (auto page = found; page != writers.end() && page->first < first + bytes; ++page) {
    if (dependent && !current->waited && page->second >= settled && page->second < launches) {
      stop(std::string(what) + " in a thread that has not waited for what wrote it");
    }
  }
}
void note_written(const unsigned char* at, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(at);
  for (std::uintptr_t page = first / kPage * kPage; page < first + bytes; page += kPage) {
    writers[page] = launches;
  }
}
void let_others_start() {
  if (!current->block->waited) starts_others_early = true;
}

void later(Task task) {
  const bool may = !writes_late || task.kind != Task::writes_memory;
  if (may && chance(early)) return task.run();
  tasks.push_back(std::move(task));
}
void products_ready(Warpgroup& group) {
  if (!chance(early)) return;
  while (!group.products.empty() && group.products.front()->arrived == 128) {
    Product* product = group.products.front();
    group.products.pop_front();
    execute(*product);
    ++group.done;
    delete product;
  }
}

void do_copies(Fiber& fiber, std::uint64_t until) {
  std::size_t n = 0;
  while (n < fiber.copies.size() && fiber.copies_done < until) {
    const Copy& copy = fiber.copies[n++];
    std::memcpy(copy.to, copy.from, copy.valid);
    std::memset(copy.to + copy.valid, 0, copy.bytes - copy.valid);
    forget_stores(*fiber.block, copy.to, copy.bytes);
    ++fiber.copies_done;
  }
  fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + static_cast<std::ptrdiff_t>(n));
}

const void* know_kernel(const void* kernel, Invoke invoke, const char* name) {
  const auto [at, added] = kernels.try_emplace(kernel);
  if (added) at->second = {invoke, name, 48 * 1024};
  return kernel;
}
void allow_shared(const void* kernel, int bytes) { kernels.at(kernel).most_shared = bytes; }

bool launch(const void* kernel, const Shape& shape, const void* args) {
  current = nullptr;
  const Kernel& known = kernels.at(kernel);
  kernel_of_fibers = kernel;
  args_of_fibers = args;
  if (shape.shared_bytes > static_cast<std::size_t>(known.most_shared)) {
    stop("a launch with " + std::to_string(shape.shared_bytes) + " bytes of shared memory, " +
         std::to_string(known.most_shared) + " allowed: " + known.name);
  }
  if (shape.block.x * shape.block.y * shape.block.z > 1024) stop("more than 1024 threads");
  ++launches;
  starts_others_early = false;
  blockDim = shape.block;
  gridDim = shape.grid;
  // Thread blocks in a random order, a cluster (or all) at a time.
  std::vector<Index3> corners;
  const Index3& c = shape.cluster;
  for (unsigned z = 0; z < shape.grid.z; z += c.z) {
    for (unsigned y = 0; y < shape.grid.y; y += c.y) {
      for (unsigned x = 0; x < shape.grid.x; x += c.x) corners.emplace_back(x, y, z);
    }
  }
  std::shuffle(corners.begin(), corners.end(), random_bits);
  std::deque<std::vector<Block*>> clusters;
  std::deque<Barrier> barriers;
  std::vector<Block*> together;
  for (const Index3& corner : corners) {
    std::vector<Block*>& blocks = clusters.emplace_back();
    barriers.emplace_back();
    for (unsigned i = 0; i < c.x * c.y * c.z; ++i) {
      const Index3 index(corner.x + i % c.x, corner.y + i / c.x % c.y, corner.z + i / c.x / c.y);
      Block* block = make_block(index, shape);
      block->rank = static_cast<int>(i);
      block->cluster = &blocks;
      block->cluster_barrier = &barriers.back();
      blocks.push_back(block);
    }
    if (shape.together) together.insert(together.end(), blocks.begin(), blocks.end());
    else run_together(blocks);
  }
  if (shape.together) run_together(together);
  current = nullptr;
  if (!dependent || !starts_others_early) settled = launches;
  dependent = false;
  return true;
}

}  // namespace emulator
