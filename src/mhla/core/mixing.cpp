// The mixing matrix as a container: sizes, access, copies.
#include "mhla/mixing.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "mhla/core/mixing_blocks.h"
#include "mhla/error.h"

namespace mhla {
namespace {

// 8 GiB of weights, 46340 blocks squared: past that a layout was mistyped. Longer contexts have
// ToeplitzMixing.
constexpr std::int64_t kMaxWeights = std::int64_t{1} << 31;

}  // namespace

void check_mixing_size(const char* where, std::int64_t heads, std::int64_t rows,
                       std::int64_t cols) {
  if (heads < 0) fail(where, "heads: expected 0 (shared by all heads) or more, got ", heads);
  if (rows < 1 || cols < 1) {
    fail(where, "a mixing matrix needs at least one row and one column, got ", rows, " x ", cols);
  }
  const std::int64_t copies = std::max<std::int64_t>(heads, 1);
  if (rows > kMaxWeights / cols || copies > kMaxWeights / (rows * cols)) {
    fail(where, "a mixing matrix of ", copies, " x ", rows, " x ", cols,
         " weights is larger than the supported ", kMaxWeights, " weights");
  }
}

BlockGrid block_grid(const BlockLayout& layout) {
  BlockGrid grid;
  grid.axes = layout.axes();
  if (grid.axes == 1) {
    grid.counts[2] = layout.mixing_size();
    return grid;
  }
  for (int axis = 0; axis < grid.axes; ++axis) {
    grid.counts[3 - grid.axes + axis] = layout.sequences().front().counts[axis];
  }
  return grid;
}

MixingMatrix::MixingMatrix(std::int64_t heads, std::int64_t rows, std::int64_t cols,
                           std::string origin)
    : heads_(heads), rows_(rows), cols_(cols), origin_(std::move(origin)) {
  check_mixing_size("mixing", heads, rows, cols);
  data_.resize(static_cast<std::size_t>(std::max<std::int64_t>(heads, 1) * rows * cols));
}

MixingMatrix MixingMatrix::constant(std::int64_t rows, std::int64_t cols, float value) {
  MixingMatrix mixing(0, rows, cols, "constant");
  std::fill(mixing.data_.begin(), mixing.data_.end(), value);
  return mixing;
}

MixingMatrix MixingMatrix::from(const float* weights, std::int64_t heads, std::int64_t rows,
                                std::int64_t cols) {
  if (weights == nullptr) fail("mixing.from", "weights: expected a pointer, got null");
  MixingMatrix mixing(heads, rows, cols, "given");
  std::copy_n(weights, mixing.data_.size(), mixing.data_.begin());
  return mixing;
}

float MixingMatrix::at(std::int64_t row, std::int64_t col, std::int64_t head) const {
  const std::int64_t copies = std::max<std::int64_t>(heads_, 1);
  if (head < 0 || head >= copies || row < 0 || row >= rows_ || col < 0 || col >= cols_) {
    fail("mixing.at", "no weight at row ", row, ", column ", col, ", head ", head,
         " of a matrix of ", copies, " x ", rows_, " x ", cols_, " weights");
  }
  return data_[static_cast<std::size_t>((head * rows_ + row) * cols_ + col)];
}

float& MixingMatrix::at(std::int64_t row, std::int64_t col, std::int64_t head) {
  std::as_const(*this).at(row, col, head);  // checks the indices
  return data_[static_cast<std::size_t>((head * rows_ + row) * cols_ + col)];
}

TensorView MixingMatrix::view() const {
  if (heads_ == 0) return TensorView::of(data_.data(), {rows_, cols_});
  return TensorView::of(data_.data(), {heads_, rows_, cols_});
}

MixingMatrix MixingMatrix::repeated_per_head(std::int64_t heads) const {
  if (heads < 1) fail("mixing.repeated_per_head", "heads: expected 1 or more, got ", heads);
  if (heads_ == heads) return *this;
  if (heads_ != 0) {
    fail("mixing.repeated_per_head", "the matrix already has one copy for each of ", heads_,
         " heads, asked for ", heads);
  }
  MixingMatrix repeated(heads, rows_, cols_, origin_);
  for (std::int64_t head = 0; head < heads; ++head) {
    std::copy(data_.begin(), data_.end(), repeated.data_.begin() + head * rows_ * cols_);
  }
  return repeated;
}

void MixingMatrix::constrain(const Constraint& constraint) { mhla::constrain(view(), constraint); }

}  // namespace mhla
