// Sizes with their overflows, gathering of strided elements, and text for messages.
#include "io/tensor.h"

#include <bit>
#include <cstdio>
#include <cstring>

#include "mhla/error.h"

namespace mhla::io {
namespace {

static_assert(std::endian::native == std::endian::little, "files are read as they lie");

// One axis at a time; the innermost run of consecutive elements is copied at once.
char* gather(const Tensor& tensor, std::size_t axis, const char* from, char* to) {
  const std::size_t width = size_of(tensor.type), rank = tensor.shape.size();
  if (axis == rank) {
    std::memcpy(to, from, width);
    return to + width;
  }
  const std::int64_t count = tensor.shape[axis], stride = tensor.strides[axis];
  if (axis + 1 == rank && stride == 1) {
    const std::size_t run = static_cast<std::size_t>(count) * width;
    std::memcpy(to, from, run);
    return to + run;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    to = gather(tensor, axis + 1, from + i * stride * static_cast<std::int64_t>(width), to);
  }
  return to;
}

}  // namespace

std::int64_t Tensor::size() const {
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return count;
}

std::uint64_t Tensor::bytes() const { return static_cast<std::uint64_t>(size()) * size_of(type); }

bool Tensor::row_major() const {
  if (size() == 0) return true;
  std::int64_t expected = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

void Tensor::copy_to(void* out) const {
  if (size() == 0) return;
  if (row_major()) {
    std::memcpy(out, data, bytes());
  } else {
    gather(*this, 0, data, static_cast<char*>(out));
  }
}

Shape row_major_strides(const Shape& shape) {
  Shape strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i] == 0 ? 1 : shape[i];
  }
  return strides;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

Extent checked_extent(const std::string& file, const std::string& name, const Shape& shape,
                      ScalarType type) {
  const auto refuse = [&](const std::string& why) {
    fail(ErrorCode::corrupt_data, "io", "'", file, "': tensor ", shown(name), ": ", why,
         "; the file is damaged or not what it seems, get it again");
  };
  if (shape.size() > kMaxRank) {
    refuse(std::to_string(shape.size()) + " axes, at most " + std::to_string(kMaxRank) +
           " are supported");
  }
  std::int64_t all = static_cast<std::int64_t>(size_of(type)), elements = 1;
  for (const std::int64_t n : shape) {
    if (n < 0) refuse("negative size in shape " + to_string(shape));
    if (__builtin_mul_overflow(all, n == 0 ? 1 : n, &all)) {
      refuse("shape " + to_string(shape) + " of " + io::name(type) + " is larger than 2^63 bytes");
    }
    elements *= n;  // at most `all`
  }
  return {elements, static_cast<std::uint64_t>(elements) * size_of(type)};
}

std::string shown(std::string_view text) {
  constexpr std::size_t kLongest = 120;
  std::string out = "'";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '\'' && c != '\\') {
      out += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      out += escaped;
    }
  }
  if (text.size() <= kLongest) return out + "'";
  return out + "...' (" + std::to_string(text.size()) + " bytes)";
}

// Shortest form, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) continue;
    const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (lead < 0xc2 || lead > 0xf4 || text.size() - i < static_cast<std::size_t>(more))
      return false;
    std::uint32_t point = lead & (0x3fU >> more);
    for (int k = 0; k < more; ++k) {
      const auto next = static_cast<unsigned char>(text[i++]);
      if ((next & 0xc0) != 0x80) return false;
      point = point << 6 | (next & 0x3f);
    }
    constexpr std::uint32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};
    if (point < kSmallest[more] || point > 0x10ffff) return false;
    if (point >= 0xd800 && point < 0xe000) return false;
  }
  return true;
}

}  // namespace mhla::io
