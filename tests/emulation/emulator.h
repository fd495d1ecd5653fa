// A multiprocessor on the CPU: the threads of a thread block (of a cluster, of a whole grid when it
// is launched so) are fibers that change at barriers and at the instructions of a warp. Copies and
// products that the hardware does in the background wait in a queue: a random number decides
// whether they are done at once, some time later, or as late as they may.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ptx.h"

namespace emulator {

inline constexpr int kMostShared = 227 * 1024;  // bytes of a thread block
inline constexpr int kReserved = 1024;          // where shared memory starts
inline constexpr int kWindow = 256 * 1024;      // bytes that one thread block's memory takes here
inline constexpr int kProcessors = 4;           // few, so that persistent kernels loop

struct Barrier {
  int arrived = 0, expected = 0;
  unsigned generation = 0;
};

// A barrier in shared memory.
struct MemoryBarrier {
  std::uint64_t magic : 8, phase : 1, expected : 12, pending : 12;
  std::int64_t bytes : 31;
};
static_assert(sizeof(MemoryBarrier) == 8);
inline constexpr unsigned kMagic = 0x5a;

struct Copy {
  unsigned char* to;
  const unsigned char* from;
  int bytes, valid;
};

// What a fiber waits for.
struct Wait {
  enum Kind { nothing, barrier, memory, products, bulk, bulk_read, turn } kind = nothing;
  const char* what = "";
  int number = 0;
  const Barrier* at = nullptr;
  unsigned generation = 0;
  MemoryBarrier* memory_at = nullptr;
  std::uint64_t count = 0;
};

struct Warp;
struct Block;
struct Fiber {
  void* stack = nullptr;
  char* stack_memory = nullptr;
  bool done = false;
  int thread = 0;
  Warp* warp = nullptr;
  Block* block = nullptr;
  Wait wait;
  std::vector<Copy> copies;       // not yet done, in order
  std::uint64_t copies_done = 0;  // of all this thread ever asked for
  std::vector<std::uint64_t> copy_groups;
  std::uint64_t bulk_issued = 0;
  std::set<std::uint64_t> bulk_unread, bulk_unwritten;  // numbers of stores under way
  std::vector<std::uint64_t> bulk_groups;
  bool waited = false;  // itself, for the kernel before
  unsigned cluster_generation = 0;
  std::uint64_t products_issued = 0;
  std::vector<std::uint64_t> product_groups;
};

// What the lanes of a warp show each other. Two sets: a lane is at most one exchange ahead.
struct LaneSlot {
  std::uint32_t word[8];
  std::uint64_t bits;
  const unsigned char* row;
};
struct Warp {
  Barrier barrier;
  const char* doing = nullptr;
  int alive = 32;
  LaneSlot slots[2][32];
};

// A product of a warpgroup that is under way.
struct Product {
  const Instruction* instruction = nullptr;
  Block* block = nullptr;
  int arrived = 0;
  bool accumulate = false, a_transposed = false, b_transposed = false;
  std::uint64_t a_descriptor = 0, b_descriptor = 0;
  std::uint32_t a[128][4];
  std::vector<void*> d;  // [128][n / 2]
};
struct Warpgroup {
  std::deque<Product*> products;  // issued by a thread at least, not done
  std::uint64_t done = 0;
};

// The last st.shared or stmatrix to 16 bytes of shared memory: by which thread, and how many
// fence.proxy.async there had been by then.
struct Stored {
  int thread = -1;
  unsigned fences = 0;
};

struct Block {
  Index3 index;
  int rank = 0;                            // in its cluster
  std::vector<Block*>* cluster = nullptr;  // by rank
  Barrier* cluster_barrier = nullptr;
  unsigned char* memory = nullptr;
  int static_bytes = 0, dynamic_bytes = 0;
  std::map<const void*, int> statics;
  std::vector<Stored> stored = std::vector<Stored>(kWindow / 16);
  unsigned fences = 0;  // fence.proxy.async of all threads
  bool waited = false;  // for the kernel before
  Barrier barrier, named[16];
  int alive = 0;
  std::vector<Fiber*> fibers;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
};

extern Fiber* current;

[[noreturn]] void stop(const std::string& why);

// Waits at a barrier of the machine until `expected` threads have come.
void wait_at(Barrier& barrier, int expected, const char* what, int number);
void arrive_at(Barrier& barrier, int expected, const char* what, int number);
void wait_for(const Wait& wait);

// All lanes meet; returns their slots. Lanes fill slot(what) first.
LaneSlot& slot(const char* what);
const LaneSlot* meet(unsigned mask = ~0u);

// Shared memory at an address of this or of another thread block of the cluster.
unsigned char* shared_pointer(std::uint32_t address, int bytes, int alignment, const char* what);
MemoryBarrier& memory_barrier(std::uint32_t address, const char* what);
void check_phase(MemoryBarrier& barrier);

// Bookkeeping of fences: a store of this thread; bytes that background work reads or writes.
void note_store(const unsigned char* at, int bytes);
void check_fenced(const Block& block, const unsigned char* at, int bytes, const char* what);
void forget_stores(Block& block, const unsigned char* at, int bytes);
Block& block_of(const unsigned char* shared);
// Ends the program if the kernel may run beside the one before and has not waited for it.
void check_waited(const char* what);
// The same for reading, unless what wrote it has ended: since then a kernel was launched that
// waited before it let others start.
void check_given(const char* what, const unsigned char* at, std::size_t bytes);
void note_written(const unsigned char* at, std::size_t bytes);
void let_others_start();  // griddepcontrol.launch_dependents

// Work in the background. `run` may be called at any later time.
struct Task {
  std::function<void()> run;
  Fiber* owner;
  // The owner must not end before what reads its shared memory, nor the thread block before what
  // writes there. What only writes to memory may outlive both.
  enum Kind { reads_shared, writes_shared, writes_memory } kind;
};
void later(Task task);
void products_ready(Warpgroup& group);
void execute(Product& product);
void do_copies(Fiber& fiber, std::uint64_t until);
void set_seed(unsigned seed);
void launch_dependent();             // the next launch need not wait for the kernel before
void set_context(const char* what);  // for messages

}  // namespace emulator
