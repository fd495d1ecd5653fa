// One buffer with tensors in it and poison everywhere else.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "mhla/verify/memory.h"

namespace mhla::verify {

// Every byte starts as 0xff, which is NaN in all four dtypes: reading what was never written spoils
// the result, and writing outside a tensor changes the pattern.
class Slab {
 public:
  // [B, N, H, width] tensors side by side in each token row, as slices of a fused projection, with
  // `gap` unused elements behind them.
  struct Rows {
    std::int64_t batch, tokens, heads;
    std::vector<std::int64_t> widths;
    std::int64_t gap = 0;
  };
  // [rows, cols], or [heads, rows, cols] when heads > 0.
  struct Matrix {
    std::int64_t heads, rows, cols, gap = 0;
  };
  Slab(const Memory& memory, DType dtype, const Rows& rows);
  Slab(const Memory& memory, DType dtype, const Matrix& matrix);

  const TensorView& view(std::size_t i) const { return views_[i]; }
  void write(std::size_t i, const std::vector<double>& values);  // row-major; then upload()
  void upload();
  void download();
  std::vector<double> read(std::size_t i) const;  // of the last download
  const std::vector<std::byte>& bytes() const { return bytes_; }
  // Whether everything outside the tensors is still poison in the last download.
  bool gaps_are_untouched() const;

 private:
  Slab(const Memory& memory, DType dtype, std::vector<TensorView> views,
       std::vector<std::int64_t> offsets, std::int64_t elements);
  std::vector<std::size_t> places(std::size_t i) const;  // byte offsets of the elements, row-major

  const Memory* memory_;
  DType dtype_;
  std::vector<TensorView> views_;
  std::vector<std::int64_t> offsets_;  // elements from the start of the buffer
  std::vector<std::byte> bytes_;       // host image
  Allocation data_;
};

}  // namespace mhla::verify
