// Keeps mixing weights in range after an optimiser step.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include "mhla/error.h"
#include "mhla/mixing.h"

namespace mhla {
namespace {

constexpr const char* kWhere = "constrain";

// [H, Mq, Mk], with one head when all share the matrix.
struct Weights {
  float* data;
  std::array<std::int64_t, 3> shape;
  std::array<std::int64_t, 3> strides;
  bool per_head;

  float& at(std::int64_t head, std::int64_t row, std::int64_t col) const {
    return data[head * strides[0] + row * strides[1] + col * strides[2]];
  }
  std::string place(std::int64_t head, std::int64_t row, std::int64_t col) const {
    const std::string inner = std::to_string(row) + ", " + std::to_string(col) + "]";
    return per_head ? "[" + std::to_string(head) + ", " + inner : "[" + inner;
  }
};

Weights weights_of(const TensorView& mixing) {
  if (mixing.rank != 2 && mixing.rank != 3) {
    fail(kWhere, "mixing: expected rank 2 or 3, got shape ", mixing.shape_string());
  }
  if (mixing.dtype != DType::f32) fail(kWhere, "mixing: expected f32, got ", name(mixing.dtype));
  if (mixing.device.kind != Device::Kind::cpu) {
    fail(kWhere, "mixing: expected host memory, got ", to_string(mixing.device));
  }
  const int first = mixing.rank - 2;
  const Weights weights{
      .data = static_cast<float*>(mixing.data),
      .shape = {first ? mixing.shape[0] : 1, mixing.shape[first], mixing.shape[first + 1]},
      .strides = {first ? mixing.strides[0] : 0, mixing.strides[first], mixing.strides[first + 1]},
      .per_head = first != 0};
  for (const std::int64_t size : weights.shape) {
    if (size < 0) fail(kWhere, "mixing: negative size in shape ", mixing.shape_string());
  }
  if (weights.data == nullptr && mixing.size() > 0) fail(kWhere, "mixing: data is null");
  return weights;
}

void check_constraint(const Constraint& constraint) {
  if (std::isnan(constraint.low) || std::isnan(constraint.high)) {
    fail(kWhere, "bounds must be numbers, got [", constraint.low, ", ", constraint.high, "]");
  }
  if (constraint.low > constraint.high) {
    fail(kWhere, "low ", constraint.low, " is above high ", constraint.high);
  }
  if (!constraint.renormalize_rows) return;
  // Weights of both signs can sum to zero, and then no factor brings the row back to one.
  if (constraint.low < 0) fail(kWhere, "renormalize_rows needs low >= 0, got ", constraint.low);
  if (constraint.high <= 0) {
    fail(kWhere, "renormalize_rows needs high > 0, got ", constraint.high);
  }
}

double clamped(float weight, const Constraint& constraint) {
  return std::clamp(static_cast<double>(weight), constraint.low, constraint.high);
}

// Nothing is written before every weight was looked at.
void check_weights(const Weights& weights, const Constraint& constraint) {
  for (std::int64_t h = 0; h < weights.shape[0]; ++h) {
    for (std::int64_t i = 0; i < weights.shape[1]; ++i) {
      for (std::int64_t j = 0; j < weights.shape[2]; ++j) {
        const float weight = weights.at(h, i, j);
        if (std::isnan(weight)) fail(kWhere, "weight ", weights.place(h, i, j), " is NaN");
        if (constraint.renormalize_rows && std::isinf(clamped(weight, constraint))) {
          fail(kWhere, "weight ", weights.place(h, i, j),
               " is infinite, its row cannot be renormalized");
        }
      }
    }
  }
}

}  // namespace

void constrain(const TensorView& mixing, const Constraint& constraint) {
  check_constraint(constraint);
  const Weights weights = weights_of(mixing);
  check_weights(weights, constraint);
  for (std::int64_t h = 0; h < weights.shape[0]; ++h) {
    for (std::int64_t i = 0; i < weights.shape[1]; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < weights.shape[2]; ++j) {
        sum += clamped(weights.at(h, i, j), constraint);
      }
      for (std::int64_t j = 0; j < weights.shape[2]; ++j) {
        float& weight = weights.at(h, i, j);
        double value = clamped(weight, constraint);
        if (constraint.renormalize_rows) {
          value = sum > 0 ? value / sum : 1.0 / static_cast<double>(weights.shape[2]);
        }
        weight = static_cast<float>(value);
      }
    }
  }
}

}  // namespace mhla
