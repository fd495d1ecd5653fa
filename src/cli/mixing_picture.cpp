// The picture of a mixing matrix, as Fig. 4b of the paper shows it.
#include "cli/mixing_picture.h"

#include <algorithm>
#include <cstdio>

#include "mhla/error.h"

namespace mhla::cli {
namespace {

constexpr int kMargin = 20;
constexpr int kMatrixSide = 600;  // wished for; cells are whole pixels
constexpr int kSmallestCell = 8;
constexpr int kMapSide = 270;       // of a row laid out as the block grid
constexpr int kLargestSide = 8192;  // beyond it cells shrink below kSmallestCell
constexpr int kCaption = Canvas::kTextHeight + 8;

std::string short_number(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", x);
  return text;
}

// Draws values in [low, high] as coloured cells.
struct Painter {
  Canvas& canvas;
  double low, high;

  void cell(int x, int y, int side, double value) const {
    const double place = high > low ? (value - low) / (high - low) : 0;
    // A hair of background between cells that are large enough to spare it.
    const int inner = side >= kSmallestCell ? side - 1 : side;
    canvas.fill(x, y, inner, inner, scale_colour(place));
  }
};

// Block counts of the layout as frames x rows x columns.
struct BlockGrid {
  int frames = 1, rows = 1, columns = 1;
  explicit BlockGrid(const BlockLayout& layout) {
    const std::vector<std::int64_t>& counts = layout.sequences().front().counts;
    const std::size_t axes = counts.size();
    columns = static_cast<int>(counts[axes - 1]);
    if (axes > 1) rows = static_cast<int>(counts[axes - 2]);
    if (axes > 2) frames = static_cast<int>(counts[0]);
  }
  int wide() const { return frames * columns + frames - 1; }  // frames side by side, a cell between
};

void draw_map(const Painter& painter, const MixingMatrix& mixing, const BlockGrid& grid,
              std::int64_t row, int x, int y, int side) {
  for (int f = 0; f < grid.frames; ++f) {
    for (int r = 0; r < grid.rows; ++r) {
      for (int c = 0; c < grid.columns; ++c) {
        const std::int64_t block = (std::int64_t{f} * grid.rows + r) * grid.columns + c;
        const int left = x + (f * (grid.columns + 1) + c) * side, top = y + r * side;
        painter.cell(left, top, side, mixing.at(row, block));
        if (block == row) painter.canvas.frame(left, top, side, side, {220, 30, 30});
      }
    }
  }
}

void draw_scale(const Painter& painter, int x, int y, int width) {
  constexpr int kThickness = 14;
  for (int i = 0; i < width; ++i) {
    painter.canvas.fill(x + i, y, 1, kThickness, scale_colour(i / std::max(1.0, width - 1.0)));
  }
  painter.canvas.text(x, y + kThickness + 6, short_number(painter.low));
  const std::string high = short_number(painter.high);
  const int width_of_text = static_cast<int>(high.size()) * 4 * Canvas::kTextScale;
  painter.canvas.text(x + width - width_of_text, y + kThickness + 6, high);
}

}  // namespace

void check_drawable(const BlockLayout& layout) {
  if (layout.mixing_size() <= kLargestSide) return;
  fail("mixing", "a picture of ", layout.mixing_size(), " blocks would not be readable, at most ",
       kLargestSide);
}

Canvas draw_mixing(const MixingMatrix& mixing, const BlockLayout& layout,
                   const std::string& title) {
  const auto [least, most] = std::minmax_element(mixing.data().begin(), mixing.data().end());
  const std::int64_t size = std::max(mixing.rows(), mixing.cols());
  int cell = std::max(kSmallestCell, kMatrixSide / static_cast<int>(size));
  if (cell * size > kLargestSide) cell = std::max(1, kLargestSide / static_cast<int>(size));
  const int matrix_width = cell * static_cast<int>(mixing.cols());
  const int matrix_height = cell * static_cast<int>(mixing.rows());

  const BlockGrid grid(layout);
  const int map_cell = std::max(2, kMapSide / std::max(grid.wide(), grid.rows));
  const int map_width = std::max(map_cell * grid.wide(), kMapSide);
  const int map_height = map_cell * grid.rows;
  const int right_height = 2 * (kCaption + map_height + kMargin) + 50;
  const int top = kMargin + kCaption;
  Canvas canvas(3 * kMargin + matrix_width + map_width,
                top + std::max(matrix_height, right_height) + kMargin);
  const Painter painter{canvas, std::min(0.0, static_cast<double>(*least)), *most};

  canvas.text(kMargin, kMargin, title);
  for (std::int64_t i = 0; i < mixing.rows(); ++i) {
    for (std::int64_t j = 0; j < mixing.cols(); ++j) {
      painter.cell(kMargin + static_cast<int>(j) * cell, top + static_cast<int>(i) * cell, cell,
                   mixing.at(i, j));
    }
  }
  const int right = 2 * kMargin + matrix_width;
  int y = top;
  // A corner, where neighbours are missing, and the middle.
  const std::int64_t middle = (std::int64_t{grid.frames / 2} * grid.rows + grid.rows / 2) *
                                  grid.columns +
                              grid.columns / 2;
  for (const std::int64_t row : {std::int64_t{0}, middle}) {
    canvas.text(right, y, "row " + std::to_string(row));
    draw_map(painter, mixing, grid, row, right, y + kCaption, map_cell);
    y += kCaption + map_height + kMargin;
  }
  draw_scale(painter, right, y, kMapSide);
  return canvas;
}

}  // namespace mhla::cli
