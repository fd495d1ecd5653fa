// A tensor inside a checkpoint file: its name, what it holds, and where its bytes lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/scalar_type.h"

namespace mhla::io {

using Shape = std::vector<std::int64_t>;

// Owns its description, not its bytes: those belong to the Checkpoint (or FileBytes) it came from.
struct Tensor {
  std::string name;
  // Where it hung in a nested .pth checkpoint: "ema", "opt.state.0"; a prefix of the name.
  std::string section;
  ScalarType type = ScalarType::f32;
  Shape shape;
  Shape strides;               // in elements; row-major for safetensors, anything >= 0 for .pth
  const char* data = nullptr;  // the first element; not necessarily aligned

  std::int64_t size() const;    // number of elements; 1 for a scalar
  std::uint64_t bytes() const;  // of a row-major copy
  bool row_major() const;
  // Gathers the elements in row-major order into a buffer of bytes().
  void copy_to(void* out) const;
};

Shape row_major_strides(const Shape& shape);
std::string to_string(const Shape& shape);  // "[2, 3]"

// More axes than any network has; LibTorch itself stops there.
constexpr std::size_t kMaxRank = 64;

struct Extent {
  std::int64_t elements;
  std::uint64_t bytes;
};
// Elements and bytes of a tensor that `file` describes. Throws ErrorCode::corrupt_data for a
// negative size, too many axes, or a product that leaves 63 bits; sizes of 0 count as 1 there, so
// that an empty tensor cannot hide an absurd shape.
Extent checked_extent(const std::string& file, const std::string& name, const Shape& shape,
                      ScalarType type);

// Text of a file inside a message: in quotes, control bytes escaped, shortened when long.
std::string shown(std::string_view text);
bool is_utf8(std::string_view text);

}  // namespace mhla::io
