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
template <typename A>
A feature(FeatureMap map, A x) {
  switch (map) {
    case FeatureMap::relu_eps: return std::max(x, A{0}) + static_cast<A>(kReluEps);
    case FeatureMap::relu: return std::max(x, A{0});
    case FeatureMap::elu1: return x > 0 ? x + 1 : std::exp(x);
    case FeatureMap::identity: return x;
  }
  fail(ErrorCode::internal, "reference", "unknown feature map");
}

template <typename A>
A feature_slope(FeatureMap map, A x) {
  switch (map) {
    case FeatureMap::relu_eps:
    case FeatureMap::relu: return x > 0 ? A{1} : A{0};
    case FeatureMap::elu1: return x > 0 ? A{1} : std::exp(x);
    case FeatureMap::identity: return A{1};
  }
  fail(ErrorCode::internal, "reference", "unknown feature map");
}

// The rows of one (batch, head) of a [B, N, H, D] tensor.
template <typename T, typename A>
class Rows {
 public:
  Rows(const TensorView& view, std::int64_t batch, std::int64_t head)
      : data_(view.defined() ? static_cast<T*>(view.data) + batch * view.strides[0] +
                                   head * view.strides[2]
                             : nullptr),
        stride_(view.strides[1]) {}

  explicit operator bool() const { return data_ != nullptr; }
  A get(std::int64_t token, std::int64_t d) const {
    return static_cast<A>(to_float(data_[token * stride_ + d]));
  }
  void set(std::int64_t token, std::int64_t d, A value) const {
    data_[token * stride_ + d] = from_float<T>(value);
  }
  void load(std::int64_t token, std::span<A> row) const {
    for (std::size_t d = 0; d < row.size(); ++d) row[d] = get(token, static_cast<std::int64_t>(d));
  }
  void load_mapped(FeatureMap map, std::int64_t token, std::span<A> row) const {
    load(token, row);
    for (A& x : row) x = feature(map, x);
  }

 private:
  T* data_;
  std::int64_t stride_;
};

// Weights of one head, stored as f32 or f64.
template <typename A>
class Mixing {
 public:
  Mixing(const TensorView& view, std::int64_t head) : view_(view) {
    offset_ = view.rank == 3 ? head * view.strides[0] : 0;
    row_stride_ = view.strides[view.rank - 2];
  }
  A operator()(std::int64_t row, std::int64_t col) const {
    const std::int64_t at = offset_ + row * row_stride_ + col;
    if (view_.dtype == DType::f64) return static_cast<A>(static_cast<const double*>(view_.data)[at]);
    return static_cast<A>(static_cast<const float*>(view_.data)[at]);
  }

 private:
  TensorView view_;
  std::int64_t offset_, row_stride_;
};

// Hands out parts of the caller's workspace.
template <typename A>
class Arena {
 public:
  explicit Arena(const Workspace& workspace) : next_(static_cast<A*>(workspace.data)) {}
  std::span<A> take(std::int64_t count) {
    const std::span<A> part(next_, static_cast<std::size_t>(count));
    next_ += count;
    return part;
  }

 private:
  A* next_;
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

template <typename A>
A dot(std::span<const A> a, std::span<const A> b) {
  A sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

template <typename A>
void add_scaled(A factor, std::span<const A> x, std::span<A> y) {
  for (std::size_t i = 0; i < x.size(); ++i) y[i] += factor * x[i];
}

// matrix[r][c] += factor * column[r] * row[c]
template <typename A>
void add_outer(A factor, std::span<const A> column, std::span<const A> row, std::span<A> matrix) {
  for (std::size_t r = 0; r < column.size(); ++r) {
    add_scaled<A>(factor * column[r], row, matrix.subspan(r * row.size(), row.size()));
  }
}

// out[c] += sum_r column[r] * matrix[r][c]
template <typename A>
void add_row_times_matrix(std::span<const A> column, std::span<const A> matrix, std::span<A> out) {
  for (std::size_t r = 0; r < column.size(); ++r) {
    add_scaled<A>(column[r], matrix.subspan(r * out.size(), out.size()), out);
  }
}

// out[r] += factor * sum_c matrix[r][c] * row[c]
template <typename A>
void add_matrix_times_row(A factor, std::span<const A> matrix, std::span<const A> row,
                          std::span<A> out) {
  for (std::size_t r = 0; r < out.size(); ++r) {
    out[r] += factor * dot<A>(matrix.subspan(r * row.size(), row.size()), row);
  }
}

}  // namespace mhla::reference
