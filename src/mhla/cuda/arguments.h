// How the host describes tensors, layouts and feature maps to kernels.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "mhla/cuda/device/blocks.cuh"
#include "mhla/cuda/device/feature_map.cuh"
#include "mhla/error.h"
#include "mhla/problem.h"

namespace mhla::cuda {

inline Map feature_map(FeatureMap map, DType dtype) {
  switch (map) {
    case FeatureMap::relu_eps: {
      Map relu_eps = kReluEps;
      if (dtype == DType::bf16) relu_eps.threshold = relu_eps.add;  // eps rounds down in bf16
      return relu_eps;
    }
    case FeatureMap::relu: return kRelu;
    case FeatureMap::elu1: return kElu1;
    case FeatureMap::identity: return kIdentity;
  }
  fail(ErrorCode::internal, "cuda", "unknown feature map");
}

inline RowTensor row_tensor(const TensorView& view) {
  if (!view.defined()) return {};
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  const auto whole = [&](std::int64_t stride, std::int64_t extent) {
    return extent <= 1 || stride * size % 16 == 0;
  };
  const bool vectors = reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 &&
                       view.shape[3] * size % 16 == 0 && whole(view.strides[0], view.shape[0]) &&
                       whole(view.strides[1], view.shape[1]) &&
                       whole(view.strides[2], view.shape[2]);
  const std::int64_t token_stride = view.shape[1] > 1 ? view.strides[1] : 0;
  if (token_stride > 0x7fffffff) {
    fail(ErrorCode::unsupported, "cuda", "tokens ", token_stride, " elements apart");
  }
  return {view.data, view.strides[0], token_stride, view.strides[2], vectors ? 1 : 0};
}

// The smallest box that holds every block of the layout.
inline std::array<std::int64_t, 3> largest_box(const BlockLayout& layout) {
  std::array<std::int64_t, 3> box{1, 1, 1};
  for (const Block& block : layout.blocks()) {
    for (int axis = 0; axis < 3; ++axis) box[axis] = std::max(box[axis], block.extent[axis]);
  }
  return box;
}

inline std::vector<DeviceBlock> device_blocks(const BlockLayout& layout) {
  const auto box = largest_box(layout);
  std::vector<DeviceBlock> table;
  for (const Block& block : layout.blocks()) {
    const std::int64_t line = block.extent[2], plane = block.extent[1] * line;
    const auto inverse = [](std::int64_t n) {  // ceil(2^64 / n)
      return n > 1 ? ~std::uint64_t{0} / static_cast<std::uint64_t>(n) + 1 : 0;
    };
    table.push_back({.first = static_cast<int>(block.first),
                     .count = static_cast<int>(block.tokens()),
                     .index = static_cast<int>(block.index),
                     .line = static_cast<int>(line),
                     .plane = static_cast<int>(plane),
                     .stride0 = static_cast<int>(block.stride[0]),
                     .stride1 = static_cast<int>(block.stride[1]),
                     .slot_line = static_cast<int>(box[2]),
                     .slot_plane = static_cast<int>(box[1] * box[2]),
                     .plane_inverse = inverse(plane),
                     .line_inverse = inverse(line)});
  }
  return table;
}

}  // namespace mhla::cuda
