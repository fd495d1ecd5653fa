// Loads and stores, matrices of a warp in shared memory, barriers in shared memory.
#include "emulator.h"
#include "instructions.h"

namespace emulator {
namespace {

// The items of a vector, or the one register.
const Argument* items(const Argument& argument, int& count) {
  if (argument.kind != Argument::list) return count = 1, &argument;
  count = static_cast<int>(argument.items.size());
  return argument.items.data();
}

unsigned char* location(const Instruction& in, Frame& frame, const Argument& argument, int bytes) {
  const std::uint64_t address = frame.read(argument);
  if (in.has("shared")) {
    return shared_pointer(static_cast<std::uint32_t>(address), bytes, bytes, in.name.c_str());
  }
  if (address % static_cast<unsigned>(bytes) != 0) stop(in.name + " is misaligned");
  check_waited(in.name.c_str());
  return reinterpret_cast<unsigned char*>(address);
}

void load(const Instruction& in, Frame& frame) {
  if (in.has("acquire")) pause();  // the start of another look at what others write
  int count;
  const Argument* to = items(in.arguments[0], count);
  const unsigned char* from = location(in, frame, in.arguments[1], count * in.size);
  for (int i = 0; i < count; ++i) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, from + i * in.size, in.size);
    if (in.is_signed) {
      const int unused = 64 - 8 * in.size;
      bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(bits << unused) >> unused);
    }
    frame.write(to[i], bits);
  }
}
void store(const Instruction& in, Frame& frame) {
  int count;
  const Argument* from = items(in.arguments[1], count);
  unsigned char* to = location(in, frame, in.arguments[0], count * in.size);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t bits = frame.read(from[i]);
    std::memcpy(to + i * in.size, &bits, in.size);
  }
  if (in.has("shared")) note_store(to, count * in.size);
  else note_written(to, static_cast<std::size_t>(count) * in.size);
}
void add_to_memory(const Instruction& in, Frame& frame) {
  auto* to = reinterpret_cast<std::uint32_t*>(location(in, frame, in.arguments[0], 4));
  *to += static_cast<std::uint32_t>(frame.read(in.arguments[1]));
}

void load_matrix(const Instruction& in, Frame& frame) {
  LaneSlot& mine = slot(in.name.c_str());
  mine.row = nullptr;
  if (lane() < 8 * in.tiles) {  // addresses of other lanes are not used
    mine.row = shared_pointer(static_cast<std::uint32_t>(frame.read(in.arguments[1])), 16, 16,
                              in.name.c_str());
  }
  const LaneSlot* lanes = meet();
  for (int tile = 0; tile < in.tiles; ++tile) {
    const auto element = [&](int i, int j) -> std::uint32_t {
      std::uint16_t x;
      std::memcpy(&x, lanes[tile * 8 + i].row + 2 * j, 2);
      return x;
    };
    const int i = lane() / 4, j = lane() % 4 * 2;
    frame.write(in.arguments[0].items[tile], in.transposed
                                                 ? element(j, i) | element(j + 1, i) << 16
                                                 : element(i, j) | element(i, j + 1) << 16);
  }
  // NOTE: rows are read after the meeting; a lane that goes on must not write them before.
  slot("ldmatrix, read");
  meet();
}
void store_matrix(const Instruction& in, Frame& frame) {
  LaneSlot& mine = slot(in.name.c_str());
  mine.row = nullptr;
  if (lane() < 8 * in.tiles) {
    mine.row = shared_pointer(static_cast<std::uint32_t>(frame.read(in.arguments[0])), 16, 16,
                              in.name.c_str());
  }
  for (int tile = 0; tile < in.tiles; ++tile) {
    mine.word[tile] = static_cast<std::uint32_t>(frame.read(in.arguments[1].items[tile]));
  }
  const LaneSlot* lanes = meet();
  // The lane that names a row writes it.
  if (lane() < 8 * in.tiles) {
    const int tile = lane() / 8, i = lane() % 8;
    for (int j = 0; j < 8; ++j) {
      const int row = in.transposed ? j : i, column = in.transposed ? i : j;
      const std::uint32_t word = lanes[row * 4 + column / 2].word[tile];
      const auto x = static_cast<std::uint16_t>(column % 2 ? word >> 16 : word);
      std::memcpy(const_cast<unsigned char*>(mine.row) + 2 * j, &x, 2);
    }
    note_store(mine.row, 16);
  }
}

void barrier_init(const Instruction& in, Frame& frame) {
  auto& barrier = *reinterpret_cast<MemoryBarrier*>(shared_pointer(
      static_cast<std::uint32_t>(frame.read(in.arguments[0])), 8, 8, in.name.c_str()));
  barrier = {};
  barrier.magic = kMagic;
  barrier.expected = barrier.pending = frame.read(in.arguments[1]);
}
void barrier_arrive(const Instruction& in, Frame& frame) {
  // [state,] [address] [, count or bytes]
  const std::size_t at = in.arguments[0].kind == Argument::address ? 0 : 1;
  MemoryBarrier& barrier = memory_barrier(static_cast<std::uint32_t>(frame.read(in.arguments[at])),
                                          in.name.c_str());
  std::uint64_t arrivals = 1;
  if (in.has("expect_tx")) barrier.bytes += static_cast<int>(frame.read(in.arguments[at + 1]));
  else if (in.arguments.size() > at + 1) arrivals = frame.read(in.arguments[at + 1]);
  if (starts(in, "mbarrier.expect_tx")) arrivals = 0;
  if (arrivals > barrier.pending) stop(in.name + ": more arrivals than the barrier expects");
  barrier.pending -= arrivals;
  check_phase(barrier);
}
void barrier_wait(const Instruction& in, Frame& frame) {
  const auto address = static_cast<std::uint32_t>(frame.read(in.arguments[1]));
  MemoryBarrier& barrier = memory_barrier(address, in.name.c_str());
  const std::uint64_t parity = frame.read(in.arguments[2]) & 1;
  if (starts(in, "mbarrier.try_wait")) {  // may wait
    wait_for({.kind = Wait::memory,
              .number = static_cast<int>(address),
              .memory_at = &barrier,
              .count = parity});
  } else if (barrier.phase == parity) {
    pause();
  }
  frame.write(in.arguments[0], barrier.phase != parity);
}

}  // namespace

bool decode_memory(Instruction& in) {
  in.transposed = in.has("trans");
  in.tiles = in.has("x4") ? 4 : in.has("x2") ? 2 : 1;
  const std::string type = in.name.substr(in.name.rfind('.') + 1);
  in.is_signed = type[0] == 's';
  in.size = type.size() > 1 ? std::atoi(type.c_str() + 1) / 8 : 0;
  if (starts(in, "ld.")) in.handler = load;
  else if (starts(in, "st.async")) return false;
  else if (starts(in, "st.")) in.handler = store;
  else if (starts(in, "red.")) in.handler = add_to_memory;
  else if (starts(in, "ldmatrix.")) in.handler = load_matrix;
  else if (starts(in, "stmatrix.")) in.handler = store_matrix;
  else if (starts(in, "mbarrier.init")) in.handler = barrier_init;
  else if (starts(in, "mbarrier.arrive") || starts(in, "mbarrier.expect_tx"))
    in.handler = barrier_arrive;
  else if (starts(in, "mbarrier.try_wait") || starts(in, "mbarrier.test_wait"))
    in.handler = barrier_wait;
  return in.handler != nullptr;
}

}  // namespace emulator
