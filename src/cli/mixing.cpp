// `mhla mixing`: an initial mixing matrix, its sums and rank, and a picture of it.
#include "mhla/mixing.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/mixing_picture.h"
#include "cli/program.h"
#include "cli/table.h"
#include "io/image.h"
#include "mhla/problem.h"

namespace mhla::cli {
namespace {

const std::vector<std::string> kLayoutKeys = {"grid", "sequence", "block", "blocks"};
constexpr const char* kInits = "locality|uniform|causal_uniform|linear|cos|exp|gaussian|local";

struct Arguments {
  std::string init = "locality", out;
  TransformOptions transform;
  bool json = false;
};

MixingMatrix make(const Arguments& arguments, const BlockLayout& layout) {
  if (arguments.init == "locality") return MixingMatrix::locality(layout);
  if (arguments.init == "uniform") return MixingMatrix::uniform(layout);
  if (arguments.init == "causal_uniform") return MixingMatrix::causal_uniform(layout);
  for (const Transform t :
       {Transform::linear, Transform::cos, Transform::exp, Transform::gaussian, Transform::local}) {
    if (arguments.init == name(t)) return MixingMatrix::authors(layout, t, arguments.transform);
  }
  fail("mixing", "init: expected one of ", kInits, ", got '", arguments.init, "'");
}

// By elimination with full pivoting; what is left below the rounding of f32 weights counts as zero.
std::optional<std::int64_t> rank(const MixingMatrix& m) {
  constexpr std::int64_t kMost = 1024;  // cubic cost: a second
  if (m.rows() > kMost || m.cols() > kMost) return std::nullopt;
  const std::size_t rows = m.rows(), cols = m.cols();
  std::vector<double> a(m.data().begin(), m.data().end());
  double first_pivot = 0;
  for (std::size_t step = 0; step < std::min(rows, cols); ++step) {
    std::size_t best_row = step, best_col = step;
    for (std::size_t i = step; i < rows; ++i) {
      for (std::size_t j = step; j < cols; ++j) {
        if (std::abs(a[i * cols + j]) > std::abs(a[best_row * cols + best_col])) {
          best_row = i;
          best_col = j;
        }
      }
    }
    const double pivot = std::abs(a[best_row * cols + best_col]);
    if (step == 0) first_pivot = pivot;
    const double noise = static_cast<double>(std::max(rows, cols)) *
                         std::numeric_limits<float>::epsilon() * first_pivot;
    if (pivot <= noise) return static_cast<std::int64_t>(step);
    for (std::size_t j = 0; j < cols; ++j) std::swap(a[step * cols + j], a[best_row * cols + j]);
    for (std::size_t i = 0; i < rows; ++i) std::swap(a[i * cols + step], a[i * cols + best_col]);
    for (std::size_t i = step + 1; i < rows; ++i) {
      const double factor = a[i * cols + step] / a[step * cols + step];
      for (std::size_t j = step; j < cols; ++j) a[i * cols + j] -= factor * a[step * cols + j];
    }
  }
  return static_cast<std::int64_t>(std::min(rows, cols));
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double x) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
  std::string text() const {
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, "%.6g to %.6g", low, high);
    return buffer;
  }
  nlohmann::json json() const { return {{"min", low}, {"max", high}}; }
};

struct Summary {
  Range weights, row_sums, column_sums;
  explicit Summary(const MixingMatrix& m) {
    std::vector<double> columns(static_cast<std::size_t>(m.cols()));
    for (std::int64_t i = 0; i < m.rows(); ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < m.cols(); ++j) {
        weights.add(m.at(i, j));
        sum += m.at(i, j);
        columns[static_cast<std::size_t>(j)] += m.at(i, j);
      }
      row_sums.add(sum);
    }
    for (const double sum : columns) column_sums.add(sum);
  }
};

void mixing(const CLI::App& command, const Arguments& arguments) {
  const std::string words = problem_words(command, kLayoutKeys);
  if (words.empty()) fail("mixing", "no layout given: try --grid 20x20 --blocks 5x5");
  const BlockLayout layout = parse_problem(words).layout;
  if (!arguments.out.empty()) {
    check_drawable(layout);
    io::image_format_of_name(arguments.out);
  }
  const MixingMatrix matrix = make(arguments, layout);
  const Summary summary(matrix);
  const std::optional<std::int64_t> the_rank = rank(matrix);
  const std::string size = std::to_string(matrix.rows()) + " x " + std::to_string(matrix.cols());
  if (!arguments.out.empty()) {
    const std::string title = arguments.init + "  " + size + "  " + layout.to_string();
    io::write_image(arguments.out, draw_mixing(matrix, layout, title).view());
  }
  if (arguments.json) {
    nlohmann::json document = {{"layout", layout.to_string()},
                               {"init", arguments.init},
                               {"rows", matrix.rows()},
                               {"cols", matrix.cols()},
                               {"weights", summary.weights.json()},
                               {"row_sums", summary.row_sums.json()},
                               {"column_sums", summary.column_sums.json()},
                               {"rank", the_rank ? nlohmann::json(*the_rank) : nlohmann::json()},
                               {"matrix", nlohmann::json::array()}};
    for (std::int64_t i = 0; i < matrix.rows(); ++i) {
      nlohmann::json row = nlohmann::json::array();
      for (std::int64_t j = 0; j < matrix.cols(); ++j) row.push_back(matrix.at(i, j));
      document["matrix"].push_back(row);
    }
    if (!arguments.out.empty()) document["picture"] = arguments.out;
    std::cout << document.dump(2) << "\n";
    return;
  }
  Table table;
  table.row({"layout", layout.to_string()});
  table.row({"matrix", size + ", " + matrix.origin()});
  table.row({"weights", summary.weights.text()});
  table.row({"row sums", summary.row_sums.text()});
  table.row({"column sums", summary.column_sums.text()});
  table.row({"rank", the_rank ? std::to_string(*the_rank) + " of " + std::to_string(matrix.rows())
                              : "not computed for so many blocks"});
  if (!arguments.out.empty()) table.row({"picture", arguments.out});
  std::cout << table.text();
}

}  // namespace

void add_mixing(CLI::App& app) {
  CLI::App* command = app.add_subcommand("mixing", "Print and draw an initial mixing matrix");
  auto arguments = std::make_shared<Arguments>();
  add_problem_flags(*command, kLayoutKeys);
  command->add_option("--init", arguments->init, "How it starts; locality is the paper's")
      ->type_name(kInits);
  command
      ->add_option("--exp_sigma", arguments->transform.exp_sigma, "Decay length of exp, in blocks")
      ->type_name("X");
  command
      ->add_option("--local_threshold", arguments->transform.local_threshold,
                   "Distance within which local weighs one")
      ->type_name("X");
  command->add_option("--out", arguments->out, "Write a picture of it, .png or .jpg")
      ->type_name("FILE");
  command->add_flag("--json", arguments->json, "Print one JSON document, weights included");
  command->footer("Example: mhla mixing --grid 20x20 --blocks 5x5 --out mixing.png");
  command->callback([command, arguments] { mixing(*command, *arguments); });
}

}  // namespace mhla::cli
