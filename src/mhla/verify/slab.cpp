// Placing tensors in a poisoned buffer, and reading them back.
#include "mhla/verify/slab.h"

#include <algorithm>

#include "mhla/verify/rounding.h"

namespace mhla::verify {
namespace {

constexpr std::byte kPoison{0xff};
constexpr std::int64_t kGuard = 64;  // elements before and after: more than any vector store

TensorView make_view(DType dtype, const Device& device, const std::vector<std::int64_t>& shape,
                     const std::vector<std::int64_t>& strides) {
  TensorView view;
  view.dtype = dtype;
  view.device = device;
  view.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  return view;
}

struct Placement {
  std::vector<TensorView> views;
  std::vector<std::int64_t> offsets;
  std::int64_t elements;
};

Placement place(DType dtype, const Device& device, const Slab::Rows& r) {
  std::int64_t row = r.gap;
  for (const std::int64_t width : r.widths) row += r.heads * width;
  Placement result{{}, {}, r.batch * r.tokens * row + 2 * kGuard};
  std::int64_t offset = kGuard;
  for (const std::int64_t width : r.widths) {
    result.views.push_back(make_view(dtype, device, {r.batch, r.tokens, r.heads, width},
                                     {r.tokens * row, row, width, 1}));
    result.offsets.push_back(offset);
    offset += r.heads * width;
  }
  return result;
}

Placement place(DType dtype, const Device& device, const Slab::Matrix& m) {
  const std::int64_t row = m.cols + m.gap;
  const std::int64_t count = std::max<std::int64_t>(m.heads, 1);
  const TensorView view = m.heads > 0 ? make_view(dtype, device, {m.heads, m.rows, m.cols},
                                                  {m.rows * row, row, 1})
                                      : make_view(dtype, device, {m.rows, m.cols}, {row, 1});
  return {{view}, {kGuard}, count * m.rows * row + 2 * kGuard};
}

}  // namespace

Slab::Slab(const Memory& memory, DType dtype, std::vector<TensorView> views,
           std::vector<std::int64_t> offsets, std::int64_t elements)
    : memory_(&memory),
      dtype_(dtype),
      views_(std::move(views)),
      offsets_(std::move(offsets)),
      bytes_(static_cast<std::size_t>(elements) * size_of(dtype), kPoison),
      data_(allocate(memory, bytes_.size())) {
  for (std::size_t i = 0; i < views_.size(); ++i) {
    views_[i].data = static_cast<std::byte*>(data_.get()) +
                     static_cast<std::size_t>(offsets_[i]) * size_of(dtype);
  }
  upload();
}

Slab::Slab(const Memory& memory, DType dtype, const Rows& rows)
    : Slab([&] {
        Placement p = place(dtype, memory.device, rows);
        return Slab(memory, dtype, std::move(p.views), std::move(p.offsets), p.elements);
      }()) {}

Slab::Slab(const Memory& memory, DType dtype, const Matrix& matrix)
    : Slab([&] {
        Placement p = place(dtype, memory.device, matrix);
        return Slab(memory, dtype, std::move(p.views), std::move(p.offsets), p.elements);
      }()) {}

std::vector<std::size_t> Slab::places(std::size_t i) const {
  const TensorView& view = views_[i];
  std::vector<std::int64_t> at{offsets_[i]};
  for (int axis = 0; axis < view.rank; ++axis) {
    std::vector<std::int64_t> next;
    for (const std::int64_t start : at) {
      for (std::int64_t j = 0; j < view.shape[axis]; ++j) {
        next.push_back(start + j * view.strides[axis]);
      }
    }
    at = std::move(next);
  }
  std::vector<std::size_t> result;
  result.reserve(at.size());
  for (const std::int64_t element : at) {
    result.push_back(static_cast<std::size_t>(element) * size_of(dtype_));
  }
  return result;
}

void Slab::write(std::size_t i, const std::vector<double>& values) {
  const std::vector<std::size_t> at = places(i);
  for (std::size_t j = 0; j < at.size(); ++j) store(dtype_, values[j], &bytes_[at[j]]);
}

void Slab::upload() { memory_->upload(data_.get(), bytes_.data(), bytes_.size()); }

void Slab::download() { memory_->download(bytes_.data(), data_.get(), bytes_.size()); }

std::vector<double> Slab::read(std::size_t i) const {
  const std::vector<std::size_t> all = places(i);
  std::vector<double> values;
  values.reserve(all.size());
  for (const std::size_t at : all) values.push_back(load(dtype_, &bytes_[at]));
  return values;
}

bool Slab::gaps_are_untouched() const {
  std::vector<std::byte> rest = bytes_;
  for (std::size_t i = 0; i < views_.size(); ++i) {
    for (const std::size_t at : places(i)) {
      std::fill_n(rest.begin() + static_cast<std::ptrdiff_t>(at), size_of(dtype_), kPoison);
    }
  }
  return std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == kPoison; });
}

}  // namespace mhla::verify
