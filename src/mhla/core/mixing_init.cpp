// How a mixing matrix starts: the paper's locality bias, the authors' transforms, uniform weights.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

#include "mhla/core/mixing_blocks.h"
#include "mhla/error.h"
#include "mhla/mixing.h"

namespace mhla {
namespace {

struct TransformName {
  Transform transform;
  const char* text;
};
constexpr TransformName kTransforms[] = {{Transform::linear, "linear"},
                                         {Transform::cos, "cos"},
                                         {Transform::exp, "exp"},
                                         {Transform::gaussian, "gaussian"},
                                         {Transform::local, "local"}};

// Euclidean distances between block centres, which lie one apart whatever the blocks hold: [M, M].
std::vector<double> block_distances(const BlockGrid& grid) {
  const std::int64_t blocks = grid.size();
  std::vector<double> distances(static_cast<std::size_t>(blocks * blocks));
  for (std::int64_t i = 0; i < blocks; ++i) {
    const BlockGrid::Place from = grid.place(i);
    for (std::int64_t j = 0; j < blocks; ++j) {
      const BlockGrid::Place to = grid.place(j);
      double squared = 0;
      for (int axis = 0; axis < 3; ++axis) {
        const auto step = static_cast<double>(from[axis] - to[axis]);
        squared += step * step;
      }
      distances[static_cast<std::size_t>(i * blocks + j)] = std::sqrt(squared);
    }
  }
  return distances;
}

// A single block has no distances, so 0 / 0: it is nearest to itself.
double relative(double distance, double longest) { return longest > 0 ? distance / longest : 0.0; }

double transformed(Transform transform, const TransformOptions& options, double distance,
                   double longest) {
  const double ratio = relative(distance, longest);
  switch (transform) {
    case Transform::linear: return 1.0 - ratio;
    case Transform::cos: return std::cos(std::numbers::pi / 4 * ratio);
    case Transform::exp: return std::exp(-distance / options.exp_sigma);
    case Transform::gaussian:
      return std::exp(-4.5 * ratio * ratio);  // -d^2 / (2 sigma^2) with sigma = longest / 3
    case Transform::local: return distance <= options.local_threshold ? 1.0 : 0.0;
  }
  fail("mixing.authors", "unknown transform ", static_cast<int>(transform));
}

}  // namespace

const char* name(Transform transform) {
  for (const TransformName& entry : kTransforms) {
    if (entry.transform == transform) return entry.text;
  }
  fail("transform", "unknown transform ", static_cast<int>(transform));
}

Transform parse_transform(const std::string& text) {
  std::string known;
  for (const TransformName& entry : kTransforms) {
    if (text == entry.text) return entry.transform;
    known += (known.empty() ? "" : ", ") + std::string(entry.text);
  }
  fail("transform", "expected one of ", known, ", got '", text, "'");
}

MixingMatrix MixingMatrix::locality(const BlockLayout& layout) {
  const BlockGrid grid = block_grid(layout);
  const std::int64_t blocks = grid.size();
  MixingMatrix mixing(0, blocks, blocks, "locality");
  const std::vector<double> distances = block_distances(grid);
  std::vector<double> row(static_cast<std::size_t>(blocks));
  for (std::int64_t i = 0; i < blocks; ++i) {
    const double* distance = distances.data() + i * blocks;
    const double longest = *std::max_element(distance, distance + blocks);
    double sum = 0;
    for (std::int64_t j = 0; j < blocks; ++j) sum += row[j] = 1.0 - relative(distance[j], longest);
    for (std::int64_t j = 0; j < blocks; ++j) {
      mixing.data_[i * blocks + j] = static_cast<float>(row[j] / sum);
    }
  }
  return mixing;
}

MixingMatrix MixingMatrix::authors(const BlockLayout& layout, Transform transform,
                                   const TransformOptions& options) {
  const char* where = "mixing.authors";
  if (!(options.exp_sigma > 0))
    fail(where, "exp_sigma: expected more than 0, got ", options.exp_sigma);
  // Below zero not even a block itself would be near, and columns of zeros cannot be normalised.
  if (!(options.local_threshold >= 0)) {
    fail(where, "local_threshold: expected 0 or more, got ", options.local_threshold);
  }
  const BlockGrid grid = block_grid(layout);
  const std::int64_t blocks = grid.size();
  MixingMatrix mixing(0, blocks, blocks, std::string("authors ") + name(transform));
  std::vector<double> weights = block_distances(grid);
  const double longest = *std::max_element(weights.begin(), weights.end());
  for (double& weight : weights) weight = transformed(transform, options, weight, longest);
  for (std::int64_t j = 0; j < blocks; ++j) {
    double sum = 0;
    for (std::int64_t i = 0; i < blocks; ++i) sum += weights[i * blocks + j];
    const double divisor = transform == Transform::gaussian ? 1.0 : sum;
    for (std::int64_t i = 0; i < blocks; ++i) {
      mixing.data_[i * blocks + j] = static_cast<float>(weights[i * blocks + j] / divisor);
    }
  }
  return mixing;
}

MixingMatrix MixingMatrix::uniform(const BlockLayout& layout) { return uniform(layout, layout); }

MixingMatrix MixingMatrix::uniform(const BlockLayout& layout_q, const BlockLayout& layout_k) {
  const std::int64_t rows = block_grid(layout_q).size();
  const std::int64_t cols = block_grid(layout_k).size();
  MixingMatrix mixing(0, rows, cols, "uniform");
  std::fill(mixing.data_.begin(), mixing.data_.end(),
            static_cast<float>(1.0 / static_cast<double>(cols)));
  return mixing;
}

MixingMatrix MixingMatrix::causal_uniform(const BlockLayout& layout) {
  const std::int64_t blocks = block_grid(layout).size();
  MixingMatrix mixing(0, blocks, blocks, "causal_uniform");
  for (std::int64_t i = 0; i < blocks; ++i) {
    const auto weight = static_cast<float>(1.0 / static_cast<double>(i + 1));
    std::fill_n(mixing.data_.begin() + i * blocks, i + 1, weight);
  }
  return mixing;
}

}  // namespace mhla
