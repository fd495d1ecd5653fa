// What rewritten kernels call: inline PTX, intrinsics of a warp, shared memory, launches.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace emulator {

struct Index3 {
  unsigned x = 1, y = 1, z = 1;
  Index3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
extern Index3 threadIdx, blockIdx, blockDim, gridDim;

template <typename To, typename From>
To bits_to(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// An operand of an asm statement: the bits of a value, and where results go.
struct Operand {
  std::uint64_t bits = 0;
  void* to = nullptr;
  int size = 0;
};
template <typename T>
Operand input(const T& x) {
  Operand operand;
  if constexpr (std::is_pointer_v<T>) {
    operand.bits = reinterpret_cast<std::uint64_t>(x);
  } else {
    std::memcpy(&operand.bits, &x, sizeof x);
    // An integer of fewer bits fills its register as the compiler converts it.
    if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
      operand.bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(x));
    }
  }
  operand.size = sizeof x;
  return operand;
}
template <typename T>
Operand output(T& x) {
  return {0, &x, sizeof x};
}
template <typename T>
Operand update(T& x) {
  Operand operand = input(x);
  operand.to = &x;
  return operand;
}

// Where an instruction finds an argument.
struct Argument {
  enum Kind { operand, local, immediate, sink, special, list, address } kind = sink;
  int index = 0;                // of the operand, of the local register, of the special one
  std::uint64_t value = 0;      // of an immediate
  std::vector<Argument> items;  // of a list or an address
};

struct Frame;
struct Instruction;
using Handler = void (*)(const Instruction&, Frame&);
struct Instruction {
  std::string name;  // with its modifiers
  Handler handler = nullptr;
  int predicate = -1;  // local register
  bool negated = false;
  std::vector<Argument> arguments;
  int n = 0, k = 0, tiles = 0, size = 0;  // what the modifiers say, as far as the handler needs it
  int format = 0;
  bool transposed = false, is_signed = false;

  bool has(const char* modifier) const;
};

// The text of one asm statement, parsed when it is first met.
class Code {
 public:
  explicit Code(const char* text);
  void run(Operand* operands) const;

 private:
  std::vector<Instruction> instructions_;
  int locals_ = 0;
};

// Values of one execution of a statement.
struct Frame {
  Operand* operands;
  std::uint64_t locals[8];
  std::uint64_t read(const Argument& argument) const;
  float read_float(const Argument& argument) const;
  void write(const Argument& argument, std::uint64_t bits);
};

void sync_block();
void sync_warp(unsigned mask);
int lane();
void pause();  // for loops that wait for another thread block
unsigned ballot(unsigned mask, bool x);
// Every lane shows a word of up to 8 bytes and reads that of another lane.
std::uint64_t shuffle_bits(unsigned mask, std::uint64_t bits, int from);
template <typename T>
T shuffle(unsigned mask, T x, int from) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  bits = shuffle_bits(mask, bits, from);
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

std::uint32_t shared_address(const void* p);
unsigned char* dynamic_shared_memory(int alignment);
template <typename T, int kAlignment = 16>
T* dynamic_shared() {
  return reinterpret_cast<T*>(dynamic_shared_memory(kAlignment));
}
void* static_shared_memory(const void* key, int bytes, int alignment);
template <typename T, typename Site>
T& static_shared(Site) {
  static const char key = 0;
  return *static_cast<T*>(static_shared_memory(&key, sizeof(T), alignof(T)));
}

// Kernels as untyped pointers, which the emulator still knows how to call.
using Invoke = void (*)(const void* kernel, const void* args);
const void* know_kernel(const void* kernel, Invoke invoke, const char* name);
template <typename Args>
const void* opaque(void (*kernel)(Args)) {
  return know_kernel(
      reinterpret_cast<void*>(kernel),  // not as rewrite.py looks for it
      [](const void* k, const void* args) {
        reinterpret_cast<void (*)(Args)>(const_cast<void*>(k))(*static_cast<const Args*>(args));
      },
      __PRETTY_FUNCTION__);
}
inline const void* opaque(void (*kernel)()) {  // never called
  return reinterpret_cast<void*>(kernel);
}
template <typename T>
const void* opaque(T* data) {
  return data;
}
struct Shape {
  Index3 grid, block, cluster;
  std::size_t shared_bytes = 0;
  bool together = false;  // all thread blocks at once
};
bool launch(const void* kernel, const Shape& shape, const void* args);

template <typename Args>
auto start(void (*kernel)(Args), Index3 grid, Index3 block, std::size_t shared, void*) {
  const void* known = opaque(kernel);
  return [=](const Args& args) {
    launch(known, {.grid = grid, .block = block, .cluster = {}, .shared_bytes = shared}, &args);
  };
}

}  // namespace emulator
