// Shared memory of the emulated thread blocks: addresses, barriers in it, and which stores a fence
// has made visible to copies and products.
#include "emulator.h"

namespace emulator {

std::uint32_t shared_address(const void* p) {
  const auto offset = static_cast<const unsigned char*>(p) - current->block->memory;
  if (offset < 0 || offset >= kWindow) stop("an address of shared memory that is not in it");
  return static_cast<std::uint32_t>(offset);
}
unsigned char* dynamic_shared_memory(int alignment) {
  Block& block = *current->block;
  const int start = kReserved + block.static_bytes;
  if (start % alignment != 0) stop("static shared memory breaks the alignment of the dynamic one");
  return block.memory + start;
}
void* static_shared_memory(const void* key, int bytes, int alignment) {
  Block& block = *current->block;
  if (const auto known = block.statics.find(key); known != block.statics.end()) {
    return block.memory + known->second;
  }
  if (block.dynamic_bytes > 0) stop("static shared memory beside dynamic one is not emulated");
  const int at = (kReserved + block.static_bytes + alignment - 1) / alignment * alignment;
  block.static_bytes = at + bytes - kReserved;
  if (block.static_bytes > 48 * 1024) stop("more than 48 KiB of static shared memory");
  block.statics[key] = at;
  return block.memory + at;
}

unsigned char* shared_pointer(std::uint32_t address, int bytes, int alignment, const char* what) {
  const Block* block = current->block;
  if (const std::uint32_t rank = address >> 24; rank != 0) {  // see mapa
    if (rank > block->cluster->size()) stop(std::string(what) + ": no such block of the cluster");
    block = (*block->cluster)[rank - 1];
  }
  const int offset = static_cast<int>(address & 0xffffff);
  const int end = kReserved + block->static_bytes + block->dynamic_bytes;
  if (offset < kReserved || offset + bytes > end) {
    stop(std::string(what) + " at " + std::to_string(offset - kReserved) + " of " +
         std::to_string(end - kReserved) + " bytes of shared memory");
  }
  if (offset % alignment != 0) {
    stop(std::string(what) + " at " + std::to_string(offset) + ", which is not a multiple of " +
         std::to_string(alignment));
  }
  return block->memory + offset;
}

MemoryBarrier& memory_barrier(std::uint32_t address, const char* what) {
  auto& barrier = *reinterpret_cast<MemoryBarrier*>(shared_pointer(address, 8, 8, what));
  if (barrier.magic != kMagic) {
    stop(std::string(what) + " at " + std::to_string(address & 0xffffff) +
         ": there is no initialised barrier (any more)");
  }
  return barrier;
}
void check_phase(MemoryBarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.phase ^= 1;
  barrier.pending = barrier.expected;
}

void note_store(const unsigned char* at, int bytes) {
  Block& block = *current->block;
  const auto offset = at - block.memory;
  if (offset < 0 || offset >= kWindow) return;  // another thread block's
  for (std::ptrdiff_t i = offset / 16; i <= (offset + bytes - 1) / 16; ++i) {
    block.stored[i] = {current->thread, block.fences};
  }
}
void check_fenced(const Block& block, const unsigned char* at, int bytes, const char* what) {
  const auto offset = at - block.memory;
  for (std::ptrdiff_t i = offset / 16; i <= (offset + bytes - 1) / 16; ++i) {
    const Stored& stored = block.stored[i];
    if (stored.thread < 0 || block.fences > stored.fences) continue;
    stop(std::string(what) + " reads shared memory at " + std::to_string(i * 16 - kReserved) +
         ", which thread " + std::to_string(stored.thread) +
         " stored, and no fence.proxy.async since");
  }
}
void forget_stores(Block& block, const unsigned char* at, int bytes) {
  const auto offset = at - block.memory;
  for (std::ptrdiff_t i = offset / 16; i <= (offset + bytes - 1) / 16; ++i) block.stored[i] = {};
}

}  // namespace emulator
