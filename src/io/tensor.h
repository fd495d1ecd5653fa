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

// The product of the sizes and the bytes they take, or nothing where either leaves 63 bits. Sizes
// of 0 count as 1, so that an empty tensor cannot hide an absurd shape.
struct Extent {
  std::int64_t elements;
  std::uint64_t bytes;
};
bool extent(const Shape& shape, ScalarType type, Extent& out);

// Text of a file inside a message: quoted, control bytes escaped, shortened when long.
std::string quoted(std::string_view text);

}  // namespace mhla::io
