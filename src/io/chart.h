// Curves as an SVG drawing: axes with round ticks, one colour a curve, a legend.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace mhla::io {

struct Curve {
  std::string name{};
  std::vector<std::pair<double, double>>
      points{};  // x rising; what is not finite interrupts the line
};

struct Chart {
  std::string title{}, x_label{}, y_label{};
  std::vector<Curve> curves{};
};

// The colour of the i-th curve, as CSS writes it; they repeat after eight.
std::string curve_colour(std::size_t i);

// An <svg> element. Long curves are thinned to what the width can show; a chart without a single
// finite point says so.
std::string to_svg(const Chart& chart);

// Round numbers that cover [low, high], about `count` of them, a fixed step apart.
std::vector<double> ticks(double low, double high, int count);

}  // namespace mhla::io
