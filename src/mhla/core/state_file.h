// States as bytes and as files: versioned, checksummed, safe to read from anywhere.
//
// All numbers are little-endian. Version 2:
//   char[8] "MHLASTAT" | u32 version | u32 length, then the problem as text (Problem::to_string)
//   u32 kind of mixing: 0 matrix: i64 heads, rows, cols, then f32 weights
//                       1 Toeplitz: u32 normalises rows, i64 radius, then 2 * radius + 1 f32
//                       weights
//   i64 tokens read, which gives the number of closed blocks and the fill of the open one
//   per closed block: S_b [lanes, dk, dv], then its denominator's sums [lanes, den_width]
//   if a block is open: i64 OpenBlock::base, then OpenBlock::running, s, z, q, k, v
//   u64 CRC-64/XZ of everything before it
// Version 1, which is still read, has only s, z and q of the open block.
// Sums are f64 for f64 problems and f32 otherwise. What these do not contain follows from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "mhla/core/state_core.h"
#include "mhla/core/state_setup.h"

namespace mhla::streaming {

template <typename T>
std::string encode(const Setup& setup, const Stream<T>& stream);

// Throws corrupt_data for anything that encode did not write; allocates in proportion to bytes.
std::pair<std::shared_ptr<const Setup>, AnyStream> decode(const void* data, std::size_t bytes);

std::uint64_t checksum(const void* data, std::size_t bytes);

// Writes a temporary file beside the path, flushes it to the disk and renames it: a reader sees
// the old file or the new one, never a part.
void write_file(const std::string& path, const std::string& bytes);
std::string read_file(const std::string& path);

}  // namespace mhla::streaming
