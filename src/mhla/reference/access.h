// Element access for the reference: strided rows, feature maps, mixing weights, carved workspace.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "mhla/core/half.h"
#include "mhla/mhla.h"

namespace mhla::reference {

// phi and its derivative; the derivative of relu at zero is zero.
inline double feature(FeatureMap map, double x) {
  switch (map) {
    case FeatureMap::relu_eps: return std::max(x, 0.0) + kReluEps;
    case FeatureMap::relu: return std::max(x, 0.0);
    case FeatureMap::elu1: return x > 0 ? x + 1 : std::exp(x);
    case FeatureMap::identity: return x;
  }
  fail(ErrorCode::internal, "reference", "unknown feature map");
}

inline double feature_slope(FeatureMap map, double x) {
  switch (map) {
    case FeatureMap::relu_eps:
    case FeatureMap::relu: return x > 0 ? 1.0 : 0.0;
    case FeatureMap::elu1: return x > 0 ? 1.0 : std::exp(x);
    case FeatureMap::identity: return 1.0;
  }
  fail(ErrorCode::internal, "reference", "unknown feature map");
}

// The rows of one (batch, head) of a [B, N, H, D] tensor.
template <typename T>
class Rows {
 public:
  Rows(const TensorView& view, std::int64_t batch, std::int64_t head)
      : data_(static_cast<T*>(view.data) + batch * view.strides[0] + head * view.strides[2]),
        stride_(view.strides[1]) {}

  explicit operator bool() const { return data_ != nullptr; }
  double get(std::int64_t token, std::int64_t d) const {
    return to_float(data_[token * stride_ + d]);
  }
  void set(std::int64_t token, std::int64_t d, double value) const {
    data_[token * stride_ + d] = from_float<T>(value);
  }
  void load(std::int64_t token, std::span<double> row) const {
    for (std::size_t d = 0; d < row.size(); ++d) row[d] = get(token, static_cast<std::int64_t>(d));
  }
  void load_mapped(FeatureMap map, std::int64_t token, std::span<double> row) const {
    load(token, row);
    for (double& x : row) x = feature(map, x);
  }

 private:
  T* data_;
  std::int64_t stride_;
};

// Weights of one head, stored as f32 or f64.
class Mixing {
 public:
  Mixing(const TensorView& view, std::int64_t head) : view_(view) {
    offset_ = view.rank == 3 ? head * view.strides[0] : 0;
    row_stride_ = view.strides[view.rank - 2];
  }
  double operator()(std::int64_t row, std::int64_t col) const {
    const std::int64_t at = offset_ + row * row_stride_ + col;
    if (view_.dtype == DType::f64) return static_cast<const double*>(view_.data)[at];
    return static_cast<const float*>(view_.data)[at];
  }

 private:
  TensorView view_;
  std::int64_t offset_, row_stride_;
};

// Hands out parts of the caller's workspace.
class Arena {
 public:
  explicit Arena(const Workspace& workspace) : next_(static_cast<double*>(workspace.data)) {}
  std::span<double> take(std::int64_t count) {
    const std::span<double> part(next_, static_cast<std::size_t>(count));
    next_ += count;
    return part;
  }

 private:
  double* next_;
};

// Key blocks whose whole summary a query block sees; the open block of a causal mask is not closed.
inline std::int64_t closed_blocks(Mask mask, std::int64_t query_block, std::int64_t key_blocks) {
  if (mask == Mask::causal) return query_block;
  if (mask == Mask::block_causal) return query_block + 1;
  return key_blocks;
}

// The token of `other` at the coordinates that `position` has in `block`, or -1 if it has none.
inline std::int64_t paired_token(const Block& block, std::int64_t position, const Block& other) {
  const std::int64_t x = position % block.extent[2];
  const std::int64_t y = position / block.extent[2] % block.extent[1];
  const std::int64_t a = position / block.extent[2] / block.extent[1];
  if (a >= other.extent[0] || y >= other.extent[1] || x >= other.extent[2]) return -1;
  return other.first + a * other.stride[0] + y * other.stride[1] + x;
}

inline double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline void add_scaled(double factor, std::span<const double> x, std::span<double> y) {
  for (std::size_t i = 0; i < x.size(); ++i) y[i] += factor * x[i];
}

// matrix[r][c] += factor * column[r] * row[c]
inline void add_outer(double factor, std::span<const double> column, std::span<const double> row,
                      std::span<double> matrix) {
  for (std::size_t r = 0; r < column.size(); ++r) {
    add_scaled(factor * column[r], row, matrix.subspan(r * row.size(), row.size()));
  }
}

// out[c] += sum_r column[r] * matrix[r][c]
inline void add_row_times_matrix(std::span<const double> column, std::span<const double> matrix,
                                 std::span<double> out) {
  for (std::size_t r = 0; r < column.size(); ++r) {
    add_scaled(column[r], matrix.subspan(r * out.size(), out.size()), out);
  }
}

// out[r] += factor * sum_c matrix[r][c] * row[c]
inline void add_matrix_times_row(double factor, std::span<const double> matrix,
                                 std::span<const double> row, std::span<double> out) {
  for (std::size_t r = 0; r < out.size(); ++r) {
    out[r] += factor * dot(matrix.subspan(r * row.size(), row.size()), row);
  }
}

}  // namespace mhla::reference
