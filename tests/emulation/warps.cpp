// Where the threads of a warp or of a thread block meet, and what lanes show each other.
#include <cstring>

#include "emulator.h"

namespace emulator {

void sync_block() {
  Barrier& barrier = current->block->barrier;
  barrier.expected = current->block->alive;  // threads that ended do not come
  wait_at(barrier, current->block->alive, "__syncthreads", 0);
}
void pause() { wait_for({.kind = Wait::turn}); }
int lane() { return current->thread % 32; }

LaneSlot& slot(const char* what) {
  Warp& warp = *current->warp;
  if (warp.barrier.arrived > 0 && warp.doing != nullptr && std::strcmp(warp.doing, what) != 0) {
    stop(std::string("lanes of a warp meet at ") + warp.doing + " and at " + what);
  }
  warp.doing = what;
  return warp.slots[warp.barrier.generation % 2][lane()];
}
const LaneSlot* meet(unsigned mask) {
  Warp& warp = *current->warp;
  const LaneSlot* slots = warp.slots[warp.barrier.generation % 2];
  const int expected = mask == ~0u ? warp.alive : __builtin_popcount(mask);
  warp.barrier.expected = expected;
  wait_at(warp.barrier, expected, warp.doing, current->thread / 32);
  return slots;
}
void sync_warp(unsigned mask) {
  slot("__syncwarp");
  meet(mask);
}
std::uint64_t shuffle_bits(unsigned mask, std::uint64_t bits, int from) {
  slot("shfl").bits = bits;
  return meet(mask)[from].bits;
}
unsigned ballot(unsigned mask, bool x) {
  slot("vote").bits = x;
  const LaneSlot* slots = meet(mask);
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) result |= static_cast<unsigned>(slots[i].bits) << i;
  }
  return result;
}

}  // namespace emulator
