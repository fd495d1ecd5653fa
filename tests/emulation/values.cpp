// Instructions on registers, and those that only order others.
#include <cmath>

#include "emulator.h"
#include "instructions.h"
#include "mhla/core/half.h"

namespace emulator {
namespace {

using Arguments = const std::vector<Argument>&;

// Both halves of words of two 16-bit numbers.
template <typename F>
std::uint32_t halves(int format, std::uint64_t a, std::uint64_t b, std::uint64_t c, F&& f) {
  std::uint32_t result = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const auto value = [&](std::uint64_t word) {
      return from_bits(Format(format), static_cast<std::uint32_t>(word >> shift & 0xffff));
    };
    result |= to_bits(Format(format), f(value(a), value(b), value(c))) << shift;
  }
  return result;
}
template <typename F>
void pairwise(const Instruction& in, Frame& frame, F&& f) {
  const std::uint64_t c = in.arguments.size() > 3 ? frame.read(in.arguments[3]) : 0;
  frame.write(in.arguments[0],
              halves(in.format, frame.read(in.arguments[1]), frame.read(in.arguments[2]), c, f));
}

void nothing(const Instruction&, Frame&) {}
void fence_proxy(const Instruction& in, Frame&) {
  if (!in.has("global")) ++current->block->fences;
}
void wait_for_previous(const Instruction&, Frame&) {
  current->waited = current->block->waited = true;
}
void start_dependents(const Instruction&, Frame&) { let_others_start(); }
void compare_not_equal(const Instruction& in, Frame& frame) {
  frame.write(in.arguments[0], static_cast<std::uint32_t>(frame.read(in.arguments[1])) !=
                                   static_cast<std::uint32_t>(frame.read(in.arguments[2])));
}
void select(const Instruction& in, Frame& frame) {
  frame.write(in.arguments[0], frame.read(in.arguments[frame.read(in.arguments[3]) ? 1 : 2]));
}
void move(const Instruction& in, Frame& frame) {
  const Argument& from = in.arguments[1];
  if (from.kind == Argument::list) {
    frame.write(in.arguments[0],
                (frame.read(from.items[0]) & 0xffffffffu) | frame.read(from.items[1]) << 32);
  } else {
    frame.write(in.arguments[0], frame.read(from));
  }
}
void pack(const Instruction& in, Frame& frame) {
  const Format format = Format(in.format);
  frame.write(in.arguments[0], to_bits(format, frame.read_float(in.arguments[1])) << 16 |
                                   to_bits(format, frame.read_float(in.arguments[2])));
}
void widen(const Instruction& in, Frame& frame) {
  const float x = from_bits(Format(in.format),
                            static_cast<std::uint32_t>(frame.read(in.arguments[1]) & 0xffff));
  frame.write(in.arguments[0], bits_to<std::uint32_t>(x));
}
void round_tf32(const Instruction& in, Frame& frame) {
  const auto bits = static_cast<std::uint32_t>(frame.read(in.arguments[1]));
  frame.write(in.arguments[0], (bits + 0x1000u) & ~0x1fffu);
}
void multiply_add(const Instruction& in, Frame& frame) {
  pairwise(in, frame, [](float a, float b, float c) {
    return static_cast<float>(static_cast<double>(a) * b + c);
  });
}
void add(const Instruction& in, Frame& frame) {
  pairwise(in, frame, [](float a, float b, float) { return a + b; });
}
void multiply(const Instruction& in, Frame& frame) {
  pairwise(in, frame, [](float a, float b, float) { return a * b; });
}
void multiply_add_wide(const Instruction& in, Frame& frame) {
  const auto a = static_cast<std::int32_t>(frame.read(in.arguments[1]));
  const auto b = static_cast<std::int32_t>(frame.read(in.arguments[2]));
  frame.write(in.arguments[0],
              static_cast<std::uint64_t>(std::int64_t{a} * b) + frame.read(in.arguments[3]));
}
void larger(const Instruction& in, Frame& frame) {
  pairwise(in, frame, [](float a, float b, float) { return a != a || a > b ? a : b; });
}
void greater(const Instruction& in, Frame& frame) {
  pairwise(in, frame, [](float a, float b, float) { return a > b ? 1.f : 0.f; });
}
void greater_mask(const Instruction& in, Frame& frame) {
  std::uint32_t mask = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const auto value = [&](const Argument& argument) {
      return from_bits(Format(in.format),
                       static_cast<std::uint32_t>(frame.read(argument) >> shift & 0xffff));
    };
    if (value(in.arguments[1]) > value(in.arguments[2])) mask |= 0xffffu << shift;
  }
  frame.write(in.arguments[0], mask);
}
void reciprocal(const Instruction& in, Frame& frame) {
  frame.write(in.arguments[0], bits_to<std::uint32_t>(1.f / frame.read_float(in.arguments[1])));
}
void elect(const Instruction& in, Frame& frame) {
  const Argument& to = in.arguments[0];
  frame.write(to.kind == Argument::list ? to.items[1] : to, lane() == 0);
}
// An address in another thread block of the cluster.
void map_address(const Instruction& in, Frame& frame) {
  const auto address = static_cast<std::uint32_t>(frame.read(in.arguments[1]));
  const auto rank = static_cast<std::uint32_t>(frame.read(in.arguments[2]));
  frame.write(in.arguments[0], (address & 0xffffffu) | (rank + 1) << 24);
}

void sync_named(const Instruction& in, Frame& frame) {
  const auto number = static_cast<int>(frame.read(in.arguments[0]));
  if (number < 0 || number > 15) stop("there are 16 barriers");
  if (in.arguments.size() < 2) return sync_block();
  const auto threads = static_cast<int>(frame.read(in.arguments[1]));
  if (threads % 32 != 0) stop("a barrier of threads that are not whole warps");
  Barrier& barrier = current->block->named[number];
  if (starts(in, "bar.arrive") || starts(in, "barrier.cta.arrive")) {
    return arrive_at(barrier, threads, "named barrier", number);
  }
  wait_at(barrier, threads, "named barrier", number);
}
void cluster_arrive(const Instruction&, Frame&) {
  Barrier& barrier = *current->block->cluster_barrier;
  int threads = 0;
  for (const Block* block : *current->block->cluster) {
    threads += static_cast<int>(block->fibers.size());
  }
  current->cluster_generation = barrier.generation;
  arrive_at(barrier, threads, "cluster barrier", 0);
}
void cluster_wait(const Instruction&, Frame&) {
  wait_for({.kind = Wait::barrier,
            .what = "cluster barrier",
            .at = current->block->cluster_barrier,
            .generation = current->cluster_generation});
}

int pair_format(const Instruction& in) { return in.has("bf16x2") ? bf16 : f16; }

}  // namespace

float from_bits(Format format, std::uint32_t bits) {
  if (format == tf32) return bits_to<float>(bits);
  if (format == bf16) return bits_to<float>(bits << 16);
  static const std::vector<float> table = [] {
    std::vector<float> values(65536);
    for (std::uint32_t i = 0; i < 65536; ++i) {
      values[i] = mhla::to_float(mhla::Float16{static_cast<std::uint16_t>(i)});
    }
    return values;
  }();
  return table[bits & 0xffff];
}
std::uint32_t to_bits(Format format, float x) {
  return format == bf16 ? mhla::to_bfloat16(x).bits : mhla::to_float16(x).bits;
}

bool decode_values(Instruction& in) {
  static constexpr struct {
    const char* name;
    Handler handler;
  } kKnown[] = {{"setp.ne.b32", compare_not_equal},
                {"selp.", select},
                {"mov.", move},
                {"cvt.rn.bf16x2.f32", pack},
                {"cvt.rn.f16x2.f32", pack},
                {"cvt.f32.f16", widen},
                {"cvt.rna.tf32.f32", round_tf32},
                {"fma.rn.", multiply_add},
                {"add.rn.", add},
                {"mul.rn.", multiply},
                {"mad.wide.s32", multiply_add_wide},
                {"max.NaN.", larger},
                {"set.gt.u32.", greater_mask},
                {"set.gt.", greater},
                {"rcp.approx.", reciprocal},
                {"elect.sync", elect},
                {"mapa.", map_address},
                {"bar.", sync_named},
                {"barrier.cluster.arrive", cluster_arrive},
                {"barrier.cluster.wait", cluster_wait},
                {"fence.proxy.async", fence_proxy},
                {"fence.", nothing},
                {"createpolicy.", nothing},
                {"setmaxnreg.", nothing},
                {"griddepcontrol.wait", wait_for_previous},
                {"griddepcontrol.launch_dependents", start_dependents},
                {"prefetch.", nothing}};
  for (const auto& [name, handler] : kKnown) {
    if (!starts(in, name)) continue;
    in.handler = handler;
    in.format = pair_format(in);
    return true;
  }
  return false;
}

void decode(Instruction& in) {
  if (!decode_values(in) && !decode_copies(in) && !decode_products(in) && !decode_memory(in)) {
    stop("an instruction the emulator does not know: " + in.name);
  }
}

}  // namespace emulator
