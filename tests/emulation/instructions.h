// The instructions that the interpreter knows.
#pragma once

#include "ptx.h"

namespace emulator {

// Finds the handler of an instruction and reads its modifiers; ends the program for an unknown one.
void decode(Instruction& instruction);

// By file; each returns whether it knows the instruction.
bool decode_values(Instruction& instruction);
bool decode_memory(Instruction& instruction);
bool decode_copies(Instruction& instruction);
bool decode_products(Instruction& instruction);

inline bool starts(const Instruction& instruction, const char* text) {
  return instruction.name.rfind(text, 0) == 0;
}

// 16-bit formats.
enum Format { bf16, f16, tf32 };
float from_bits(Format format, std::uint32_t bits);
std::uint32_t to_bits(Format format, float x);

// The address after the swizzle of rows of 32, 64 or 128 bytes (0: none).
inline std::uint64_t swizzled(std::uint64_t address, int row_bytes) {
  if (row_bytes == 0) return address;
  const std::uint64_t mask = static_cast<std::uint64_t>(row_bytes - 1) & 0x70;
  return address ^ (address >> 3 & mask);
}

}  // namespace emulator
