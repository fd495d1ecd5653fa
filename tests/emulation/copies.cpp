// Copies in the background: cp.async of a thread, and the bulk copy engine with its tensor maps.
#include <cuda.h>

#include <algorithm>

#include "emulator.h"
#include "instructions.h"

namespace emulator {
namespace {

void copy(const Instruction& in, Frame& frame) {
  const auto bytes = static_cast<int>(frame.read(in.arguments[2]));
  const auto valid = in.arguments.size() > 3 ? static_cast<int>(frame.read(in.arguments[3]))
                                             : bytes;
  unsigned char* to = shared_pointer(static_cast<std::uint32_t>(frame.read(in.arguments[0])), bytes,
                                     bytes, in.name.c_str());
  const std::uint64_t from = frame.read(in.arguments[1]);
  check_waited(in.name.c_str());
  if (valid > 0 && from % static_cast<unsigned>(bytes) != 0) stop(in.name + " is misaligned");
  current->copies.push_back({to, reinterpret_cast<const unsigned char*>(from), bytes, valid});
}
std::uint64_t copies_issued(const Fiber& fiber) { return fiber.copies_done + fiber.copies.size(); }
void copy_commit(const Instruction&, Frame&) {
  current->copy_groups.push_back(copies_issued(*current));
}
void copy_wait(const Instruction& in, Frame& frame) {
  const std::size_t pending = in.arguments.empty() ? 0 : frame.read(in.arguments[0]);
  if (in.has("wait_all")) return do_copies(*current, ~std::uint64_t{0});
  auto& groups = current->copy_groups;
  while (groups.size() > pending) {
    do_copies(*current, groups.front());
    groups.erase(groups.begin());
  }
}
// Arrives once the copies of this thread so far are done.
void arrive_after_copies(const Instruction& in, Frame& frame) {
  if (!in.has("noinc")) stop(in.name + " is not emulated");
  MemoryBarrier& barrier = memory_barrier(static_cast<std::uint32_t>(frame.read(in.arguments[0])),
                                          in.name.c_str());
  Fiber* fiber = current;
  const std::uint64_t until = copies_issued(*fiber);
  later({.run =
             [=, &barrier] {
               do_copies(*fiber, until);
               if (barrier.pending == 0) stop("more arrivals than the barrier expects");
               barrier.pending -= 1;
               check_phase(barrier);
             },
         .owner = fiber,
         .kind = Task::writes_shared});
}

void land(MemoryBarrier& barrier, int bytes) {
  barrier.bytes -= bytes;
  check_phase(barrier);
}

void bulk_load(const Instruction& in, Frame& frame) {
  const auto bytes = static_cast<int>(frame.read(in.arguments[2]));
  if (bytes % 16 != 0 || bytes == 0) stop(in.name + ": not whole 16 bytes");
  unsigned char* to = shared_pointer(static_cast<std::uint32_t>(frame.read(in.arguments[0])), bytes,
                                     16, in.name.c_str());
  const bool shared = in.has("shared::cta");
  const std::uint64_t address = frame.read(in.arguments[1]);
  const unsigned char* from = shared ? shared_pointer(static_cast<std::uint32_t>(address), bytes,
                                                      16, in.name.c_str())
                                     : reinterpret_cast<const unsigned char*>(address);
  if (address % 16 != 0) stop(in.name + " is misaligned");
  if (!shared) check_waited(in.name.c_str());
  MemoryBarrier& barrier = memory_barrier(static_cast<std::uint32_t>(frame.read(in.arguments[3])),
                                          in.name.c_str());
  later({.run =
             [=, &barrier] {
               if (shared) check_fenced(block_of(from), from, bytes, "cp.async.bulk");
               std::memcpy(to, from, bytes);
               forget_stores(block_of(to), to, bytes);
               land(barrier, bytes);
             },
         .owner = current,
         .kind = Task::writes_shared});
}

// A bulk store in two steps, each at its own time: `read` takes the bytes from shared memory and
// returns what writes them. Both count for the thread that asked for the store.
void bulk_store_later(std::function<std::function<void()>()> read) {
  Fiber* fiber = current;
  const std::uint64_t number = ++fiber->bulk_issued;
  fiber->bulk_unread.insert(number);
  fiber->bulk_unwritten.insert(number);
  later({.run =
             [=, read = std::move(read)] {
               const std::function<void()> write = read();
               fiber->bulk_unread.erase(number);
               later({.run =
                          [=] {
                            write();
                            fiber->bulk_unwritten.erase(number);
                          },
                      .owner = fiber,
                      .kind = Task::writes_memory});
             },
         .owner = fiber,
         .kind = Task::reads_shared});
}
void bulk_store(const Instruction& in, Frame& frame) {
  const auto bytes = static_cast<int>(frame.read(in.arguments[2]));
  if (bytes % 16 != 0) stop(in.name + ": not whole 16 bytes");
  auto* to = reinterpret_cast<unsigned char*>(frame.read(in.arguments[0]));
  const unsigned char* from = shared_pointer(
      static_cast<std::uint32_t>(frame.read(in.arguments[1])), bytes, 16, in.name.c_str());
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0) stop(in.name + " is misaligned");
  check_waited(in.name.c_str());
  bulk_store_later([=] {
    check_fenced(block_of(from), from, bytes, "cp.async.bulk");
    const std::vector<unsigned char> read(from, from + bytes);
    return [=] {
      std::memcpy(to, read.data(), read.size());
      note_written(to, read.size());
    };
  });
}
void bulk_commit(const Instruction&, Frame&) {
  current->bulk_groups.push_back(current->bulk_issued);
}
void bulk_wait(const Instruction& in, Frame& frame) {
  const std::uint64_t pending = frame.read(in.arguments[0]);
  const auto& groups = current->bulk_groups;
  if (groups.size() <= pending) return;
  wait_for({.kind = in.has("read") ? Wait::bulk_read : Wait::bulk,
            .count = groups[groups.size() - 1 - pending]});
}

// Calls row(shared offset, global address or null, bytes) for 16-byte chunks of a box.
struct Box {
  CUtensorMap map;
  std::int64_t start[5];
  int bytes() const {
    int n = map.element;
    for (int i = 0; i < map.rank; ++i) n *= map.box[i];
    return n;
  }
  template <typename Chunk>
  void each(unsigned char* window, std::uint64_t offset, Chunk&& chunk) const {
    const int row_bytes = map.box[0] * map.element, rows = bytes() / row_bytes;
    const int swizzle = map.swizzle == 0 ? 0 : 16 << map.swizzle;
    for (int row = 0; row < rows; ++row) {
      unsigned char* global = map.data;
      bool inside = true;
      int rest = row;
      for (int i = 1; i < map.rank; ++i) {
        const std::int64_t at = start[i] + rest % map.box[i];
        rest /= map.box[i];
        inside = inside && at >= 0 && at < static_cast<std::int64_t>(map.extent[i]);
        global += at * static_cast<std::int64_t>(map.stride[i - 1]);
      }
      for (int byte = 0; byte < row_bytes; byte += map.element) {
        const std::int64_t column = start[0] + byte / map.element;
        const bool valid = inside && column >= 0 &&
                           column < static_cast<std::int64_t>(map.extent[0]);
        const std::uint64_t address = offset + static_cast<std::uint64_t>(row) * row_bytes + byte;
        chunk(window + swizzled(address, swizzle), valid ? global + column * map.element : nullptr);
      }
    }
  }
};

Box read_box(const Instruction& in, Frame& frame, const Argument& argument) {
  Box box{};
  box.map = *reinterpret_cast<const CUtensorMap*>(frame.read(argument.items[0]));
  if (box.map.magic != kMagic) stop(in.name + ": not a description of a tensor");
  const Argument& start = argument.items[1];
  const char rank = static_cast<char>('0' + box.map.rank);
  if (static_cast<int>(start.items.size()) != box.map.rank ||
      in.name.find(std::string("tensor.") + rank + "d") == std::string::npos) {
    stop(in.name + ": a tensor of another rank");
  }
  for (int i = 0; i < box.map.rank; ++i) {
    box.start[i] = static_cast<std::int32_t>(frame.read(start.items[i]));
  }
  return box;
}
// The start of the thread block's memory that a pointer lies in.
unsigned char* window_of(unsigned char* p, std::uint32_t address) {
  return p - (address & 0xffffff);
}
int alignment_of(const Box& box) { return box.map.swizzle == 0 ? 128 : 128; }
// From the first to the last byte of the tensor.
std::size_t span_of(const CUtensorMap& map) {
  std::size_t bytes = map.extent[0] * map.element;
  for (int i = 1; i < map.rank; ++i) bytes += (map.extent[i] - 1) * map.stride[i - 1];
  return bytes;
}

void tensor_load(const Instruction& in, Frame& frame) {
  const Box box = read_box(in, frame, in.arguments[1]);
  check_given(in.name.c_str(), box.map.data, span_of(box.map));
  const auto address = static_cast<std::uint32_t>(frame.read(in.arguments[0]));
  unsigned char* to = shared_pointer(address, box.bytes(), alignment_of(box), in.name.c_str());
  unsigned char* window = window_of(to, address);
  MemoryBarrier& barrier = memory_barrier(static_cast<std::uint32_t>(frame.read(in.arguments[2])),
                                          in.name.c_str());
  later({.run =
             [=, &barrier] {
               box.each(window, address & 0xffffff,
                        [&](unsigned char* shared, const unsigned char* global) {
                          if (global != nullptr) std::memcpy(shared, global, box.map.element);
                          else std::memset(shared, 0, box.map.element);
                        });
               forget_stores(block_of(to), to, box.bytes());
               land(barrier, box.bytes());
             },
         .owner = current,
         .kind = Task::writes_shared});
}
void tensor_store(const Instruction& in, Frame& frame) {
  const Box box = read_box(in, frame, in.arguments[0]);
  check_given(in.name.c_str(), box.map.data, span_of(box.map));
  const auto address = static_cast<std::uint32_t>(frame.read(in.arguments[1]));
  unsigned char* from = shared_pointer(address, box.bytes(), alignment_of(box), in.name.c_str());
  unsigned char* window = window_of(from, address);
  bulk_store_later([=] {
    check_fenced(block_of(from), from, box.bytes(), "cp.async.bulk.tensor");
    struct Element {
      unsigned char* to;
      unsigned char bytes[8];
    };
    std::vector<Element> read;
    box.each(window, address & 0xffffff, [&](unsigned char* shared, unsigned char* global) {
      if (global != nullptr) std::memcpy(read.emplace_back(global).bytes, shared, box.map.element);
    });
    return [box, read = std::move(read)] {
      for (const Element& one : read) std::memcpy(one.to, one.bytes, box.map.element);
      note_written(box.map.data, span_of(box.map));
    };
  });
}
void tensor_prefetch(const Instruction& in, Frame& frame) {
  const Box box = read_box(in, frame, in.arguments[0]);
  check_given(in.name.c_str(), box.map.data, span_of(box.map));
}

// Four words of registers to another thread block of the cluster.
void push(const Instruction& in, Frame& frame) {
  const auto& words = in.arguments[1].items;
  const int bytes = static_cast<int>(words.size()) * 4;
  unsigned char* to = shared_pointer(static_cast<std::uint32_t>(frame.read(in.arguments[0])), bytes,
                                     bytes, in.name.c_str());
  MemoryBarrier& barrier = memory_barrier(static_cast<std::uint32_t>(frame.read(in.arguments[2])),
                                          in.name.c_str());
  std::vector<std::uint32_t> values;
  for (const Argument& word : words) values.push_back(static_cast<std::uint32_t>(frame.read(word)));
  later({.run =
             [=, &barrier] {
               std::memcpy(to, values.data(), bytes);
               land(barrier, bytes);
             },
         .owner = current,
         .kind = Task::writes_shared});
}

}  // namespace

bool decode_copies(Instruction& in) {
  static constexpr struct {
    const char* name;
    Handler handler;
  } kKnown[] = {{"cp.async.bulk.commit_group", bulk_commit},
                {"cp.async.bulk.wait_group", bulk_wait},
                {"cp.async.bulk.tensor.", tensor_load},
                {"cp.async.bulk.prefetch.tensor.", tensor_prefetch},
                {"cp.async.bulk.shared::cluster.", bulk_load},
                {"cp.async.bulk.global.", bulk_store},
                {"cp.async.commit_group", copy_commit},
                {"cp.async.wait_", copy_wait},
                {"cp.async.mbarrier.arrive", arrive_after_copies},
                {"cp.async.c", copy},
                {"st.async.", push}};
  for (const auto& [name, handler] : kKnown) {
    if (!starts(in, name)) continue;
    in.handler = handler;
    if (handler == tensor_load && in.has("bulk_group")) in.handler = tensor_store;
    return true;
  }
  return false;
}

}  // namespace emulator
