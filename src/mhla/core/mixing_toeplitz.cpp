// Mixing weights by block offset: one small table serves any number of blocks.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "mhla/core/arithmetic.h"
#include "mhla/core/mixing_blocks.h"
#include "mhla/error.h"
#include "mhla/mixing.h"

namespace mhla {
namespace {

// A row that sums to zero has no scale and stays as it is.
void divide_by_sum(float* row, std::int64_t size) {
  double sum = 0;
  for (std::int64_t j = 0; j < size; ++j) sum += row[j];
  if (sum == 0) return;
  for (std::int64_t j = 0; j < size; ++j) row[j] = static_cast<float>(row[j] / sum);
}

std::vector<std::int64_t> radius_of(const BlockGrid& grid) {
  std::vector<std::int64_t> radius;
  for (int axis = 3 - grid.axes; axis < 3; ++axis) radius.push_back(grid.counts[axis] - 1);
  return radius;
}

// Place of an offset in the table of weights.
std::size_t table_index(const std::vector<std::int64_t>& radius, const std::int64_t* offset) {
  std::int64_t index = 0;
  for (std::size_t axis = 0; axis < radius.size(); ++axis) {
    const std::int64_t r = radius[axis];
    index = index * (2 * r + 1) + std::clamp(offset[axis], -r, r) + r;
  }
  return static_cast<std::size_t>(index);
}

}  // namespace

ToeplitzMixing::ToeplitzMixing(std::vector<std::int64_t> radius, std::vector<float> weights,
                               bool normalize_rows)
    : radius_(std::move(radius)), weights_(std::move(weights)), normalize_rows_(normalize_rows) {
  if (radius_.empty() || radius_.size() > 3) {
    fail("toeplitz", "radius: expected one number for each of 1 to 3 axes, got ", radius_.size());
  }
  std::int64_t expected = 1;
  for (const std::int64_t r : radius_) {
    if (r < 0) fail("toeplitz", "radius: expected 0 or more, got ", r);
    const auto given = static_cast<std::int64_t>(weights_.size());
    // Compared before multiplying: a radius from a damaged file must not overflow.
    if (r > given || expected > given / (2 * r + 1)) {
      fail("toeplitz", "weights: ", given, " are too few for radius ", r);
    }
    expected *= 2 * r + 1;
  }
  if (expected != static_cast<std::int64_t>(weights_.size())) {
    fail("toeplitz", "weights: expected ", expected, ", got ", weights_.size());
  }
}

ToeplitzMixing ToeplitzMixing::causal(const std::vector<float>& weights, bool normalize_rows) {
  if (weights.empty()) fail("toeplitz.causal", "weights: expected at least one, got none");
  // At least one offset to either side, so that the tail of the future is a stored zero.
  const std::size_t radius = std::max<std::size_t>(weights.size() - 1, 1);
  std::vector<float> table(2 * radius + 1, 0.0F);
  for (std::size_t d = 0; d <= radius; ++d) {
    table[radius + d] = weights[std::min(d, weights.size() - 1)];
  }
  return {{static_cast<std::int64_t>(radius)}, std::move(table), normalize_rows};
}

float ToeplitzMixing::at(const std::vector<std::int64_t>& offset) const {
  if (offset.size() != radius_.size()) {
    fail("toeplitz.at", "offset: expected ", radius_.size(), " numbers, got ", offset.size());
  }
  return weights_[table_index(radius_, offset.data())];
}

std::vector<float> ToeplitzMixing::causal_row(std::int64_t i) const {
  if (axes() != 1) fail("toeplitz.causal_row", "needs weights of 1 axis, these have ", axes());
  if (i < 0) fail("toeplitz.causal_row", "expected a row of 0 or more, got ", i);
  check_mixing_size("toeplitz.causal_row", 0, 1, checked_add("toeplitz.causal_row", i, 1));
  std::vector<float> row(static_cast<std::size_t>(i + 1));
  for (std::int64_t j = 0; j <= i; ++j) {
    const std::int64_t offset = i - j;
    row[j] = weights_[table_index(radius_, &offset)];
  }
  if (normalize_rows_) divide_by_sum(row.data(), i + 1);
  return row;
}

MixingMatrix ToeplitzMixing::matrix(const BlockLayout& layout) const {
  const BlockGrid grid = block_grid(layout);
  if (grid.axes != axes()) {
    fail("toeplitz.matrix", "the layout ", layout.to_string(), " has ", grid.axes,
         " axes, the weights have ", axes());
  }
  const std::int64_t blocks = grid.size();
  check_mixing_size("toeplitz.matrix", 0, blocks, blocks);
  std::vector<float> weights(static_cast<std::size_t>(blocks * blocks));
  for (std::int64_t i = 0; i < blocks; ++i) {
    float* row = weights.data() + i * blocks;
    const BlockGrid::Place query = grid.place(i);
    for (std::int64_t j = 0; j < blocks; ++j) {
      const BlockGrid::Place key = grid.place(j);
      const BlockGrid::Place offset{query[0] - key[0], query[1] - key[1], query[2] - key[2]};
      row[j] = weights_[table_index(radius_, offset.data() + 3 - axes())];
    }
    if (normalize_rows_) divide_by_sum(row, blocks);
  }
  return MixingMatrix::from(weights.data(), 0, blocks, blocks);
}

ToeplitzMixing MixingMatrix::to_toeplitz(const BlockLayout& layout, bool causal) const {
  const char* where = "mixing.to_toeplitz";
  const BlockGrid grid = block_grid(layout);
  const std::int64_t blocks = grid.size();
  if (rows_ != blocks || cols_ != blocks) {
    fail(where, "the layout ", layout.to_string(), " has ", blocks, " blocks, the matrix is ",
         rows_, " x ", cols_);
  }
  if (heads_ > 1) {
    fail(where, "the matrix has one copy for each of ", heads_, " heads, a table has only one");
  }
  if (causal && grid.axes != 1) {
    fail(where, "causal weights by offset need a layout of 1 axis, got ", layout.to_string());
  }
  const std::vector<std::int64_t> radius = radius_of(grid);
  std::size_t entries = 1;
  for (const std::int64_t r : radius) entries *= static_cast<std::size_t>(2 * r + 1);
  std::vector<double> sums(entries);
  std::vector<std::int64_t> pairs(entries);
  for (std::int64_t i = 0; i < blocks; ++i) {
    const BlockGrid::Place query = grid.place(i);
    for (std::int64_t j = 0; j < blocks; ++j) {
      const BlockGrid::Place key = grid.place(j);
      const BlockGrid::Place offset{query[0] - key[0], query[1] - key[1], query[2] - key[2]};
      const std::size_t entry = table_index(radius, offset.data() + 3 - grid.axes);
      sums[entry] += data_[i * blocks + j];
      ++pairs[entry];
    }
  }
  // Every offset of the table occurs at least once.
  std::vector<float> means(entries);
  for (std::size_t e = 0; e < entries; ++e) {
    means[e] = static_cast<float>(sums[e] / static_cast<double>(pairs[e]));
  }
  if (!causal) return {radius, means};
  // What stands above the diagonal has offsets below zero and is dropped here.
  return ToeplitzMixing::causal({means.begin() + radius[0], means.end()});
}

}  // namespace mhla
