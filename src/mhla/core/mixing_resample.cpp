// Moves a trained mixing matrix to a layout with another number of blocks.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "mhla/core/mixing_blocks.h"
#include "mhla/error.h"
#include "mhla/mixing.h"

namespace mhla {
namespace {

constexpr const char* kWhere = "mixing.resample";

// A sum whose terms cancel to less than this part of their size is rounding, not a row sum.
constexpr double kCancelled = 1e-12;

struct Tap {
  std::int64_t block;
  double weight;
};
using Taps = std::vector<Tap>;  // a new block as a mean of up to two old ones per axis

// Position of new block i of `to` among `from` old block centres, which lie one apart.
std::array<Tap, 2> axis_taps(std::int64_t i, std::int64_t from, std::int64_t to) {
  const double centre = (static_cast<double>(i) + 0.5) * static_cast<double>(from) /
                            static_cast<double>(to) -
                        0.5;
  const double at = std::clamp(centre, 0.0, static_cast<double>(from - 1));
  const auto low = static_cast<std::int64_t>(at);
  const double fraction = at - static_cast<double>(low);
  return {{{low, 1.0 - fraction}, {std::min(low + 1, from - 1), fraction}}};
}

std::vector<Taps> all_taps(const BlockGrid& from, const BlockGrid& to) {
  std::vector<Taps> taps(static_cast<std::size_t>(to.size()));
  for (std::int64_t block = 0; block < to.size(); ++block) {
    const BlockGrid::Place place = to.place(block);
    std::array<std::array<Tap, 2>, 3> axis;
    for (int a = 0; a < 3; ++a) axis[a] = axis_taps(place[a], from.counts[a], to.counts[a]);
    for (int corner = 0; corner < 8; ++corner) {
      const Tap& frame = axis[0][corner >> 2 & 1];
      const Tap& row = axis[1][corner >> 1 & 1];
      const Tap& col = axis[2][corner & 1];
      const double weight = frame.weight * row.weight * col.weight;
      if (weight == 0) continue;  // also keeps NaN out of a sum it has no part in
      taps[block].push_back({from.index({frame.block, row.block, col.block}), weight});
    }
  }
  return taps;
}

double interpolated(const double* values, const Taps& taps) {
  double sum = 0;
  for (const Tap& tap : taps) sum += tap.weight * values[tap.block];
  return sum;
}

// The old matrix in f64. Causal: above the diagonal stands the row's own diagonal weight, so that
// blocks near the diagonal are not drawn towards weights without a meaning.
std::vector<double> old_weights(const float* weights, std::int64_t blocks, bool causal) {
  std::vector<double> values(static_cast<std::size_t>(blocks * blocks));
  for (std::int64_t i = 0; i < blocks; ++i) {
    for (std::int64_t j = 0; j < blocks; ++j) {
      values[i * blocks + j] = weights[i * blocks + (causal ? std::min(i, j) : j)];
    }
  }
  return values;
}

std::vector<double> row_sums(const std::vector<double>& values, std::int64_t blocks, bool causal) {
  std::vector<double> sums(static_cast<std::size_t>(blocks));
  for (std::int64_t i = 0; i < blocks; ++i) {
    for (std::int64_t j = 0; j < (causal ? i + 1 : blocks); ++j) sums[i] += values[i * blocks + j];
  }
  return sums;
}

// Rescales a row to the given sum; what no factor can reach is spread evenly.
void set_sum(std::vector<double>& row, std::int64_t used, double target) {
  double sum = 0;
  double size = 0;
  for (std::int64_t j = 0; j < used; ++j) {
    sum += row[j];
    size += std::abs(row[j]);
  }
  if (std::abs(sum) > kCancelled * size) {
    for (std::int64_t j = 0; j < used; ++j) row[j] *= target / sum;
  } else {
    for (std::int64_t j = 0; j < used; ++j) row[j] += (target - sum) / static_cast<double>(used);
  }
}

void resample_one(const float* weights, const BlockGrid& from, const BlockGrid& to,
                  const ResampleOptions& options, float* result) {
  const std::int64_t old_blocks = from.size();
  const std::int64_t new_blocks = to.size();
  const std::vector<Taps> taps = all_taps(from, to);
  const std::vector<double> values = old_weights(weights, old_blocks, options.causal);
  const std::vector<double> sums = row_sums(values, old_blocks, options.causal);
  std::vector<double> between(static_cast<std::size_t>(old_blocks));  // new row, old columns
  std::vector<double> row(static_cast<std::size_t>(new_blocks));
  for (std::int64_t i = 0; i < new_blocks; ++i) {
    std::fill(between.begin(), between.end(), 0.0);
    for (const Tap& tap : taps[i]) {
      for (std::int64_t j = 0; j < old_blocks; ++j) {
        between[j] += tap.weight * values[tap.block * old_blocks + j];
      }
    }
    const std::int64_t used = options.causal ? i + 1 : new_blocks;
    for (std::int64_t j = 0; j < used; ++j) row[j] = interpolated(between.data(), taps[j]);
    if (options.keep_row_sums) set_sum(row, used, interpolated(sums.data(), taps[i]));
    for (std::int64_t j = 0; j < used; ++j) {
      result[i * new_blocks + j] = static_cast<float>(row[j]);
    }
  }
}

}  // namespace

MixingMatrix MixingMatrix::resample(const BlockLayout& from, const BlockLayout& to,
                                    const ResampleOptions& options) const {
  const BlockGrid old_grid = block_grid(from);
  const BlockGrid new_grid = block_grid(to);
  if (old_grid.axes != new_grid.axes) {
    fail(kWhere, "layouts must have the same number of axes, got ", old_grid.axes, " (",
         from.to_string(), ") and ", new_grid.axes, " (", to.to_string(), ")");
  }
  const std::int64_t old_blocks = old_grid.size();
  const std::int64_t new_blocks = new_grid.size();
  if (rows_ != old_blocks || cols_ != old_blocks) {
    fail(kWhere, "the layout ", from.to_string(), " has ", old_blocks, " blocks, the matrix is ",
         rows_, " x ", cols_);
  }
  MixingMatrix result(heads_, new_blocks, new_blocks,
                      origin_ + ", resampled from " + from.to_string());
  const std::int64_t copies = std::max<std::int64_t>(heads_, 1);
  for (std::int64_t h = 0; h < copies; ++h) {
    const float* old_data = data_.data() + h * old_blocks * old_blocks;
    float* new_data = result.data_.data() + h * new_blocks * new_blocks;
    if (old_grid == new_grid) {  // exact, even for weights that are not finite
      for (std::int64_t i = 0; i < old_blocks; ++i) {
        std::copy_n(old_data + i * old_blocks, options.causal ? i + 1 : old_blocks,
                    new_data + i * old_blocks);
      }
    } else {
      resample_one(old_data, old_grid, new_grid, options, new_data);
    }
  }
  return result;
}

}  // namespace mhla
