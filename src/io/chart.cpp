// Scales, ticks and lines of a chart.
#include "io/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "io/html.h"

namespace mhla::io {
namespace {

constexpr double kWidth = 640, kHeight = 320;
constexpr double kLeft = 64, kRight = 16, kTop = 34, kBottom = 46;  // room for labels
constexpr std::size_t kMostPoints = 600;                            // about one a pixel

std::string number(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.6g", value);
  return buffer;
}

std::string coordinate(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.1f", value);
  return buffer;
}

bool is_finite(const std::pair<double, double>& point) {
  return std::isfinite(point.first) && std::isfinite(point.second);
}

// One axis: values to pixels.
class Scale {
 public:
  Scale(double from, double to) : from_(from), to_(to) {}

  void add(double value) {
    low_ = std::min(low_, value);
    high_ = std::max(high_, value);
  }
  bool empty() const { return low_ > high_; }
  void close() {
    if (low_ == high_) {  // one value: a range around it
      const double margin = low_ == 0 ? 1 : std::abs(low_) / 10;
      low_ -= margin;
      high_ += margin;
    }
  }
  std::vector<double> marks(int count) const { return ticks(low_, high_, count); }
  double pixel(double value) const {
    return from_ + (value - low_) / (high_ - low_) * (to_ - from_);
  }

 private:
  double from_, to_;
  double low_ = std::numeric_limits<double>::infinity();
  double high_ = -std::numeric_limits<double>::infinity();
};

struct Axes {
  Scale x{kLeft, kWidth - kRight};
  Scale y{kHeight - kBottom, kTop};
};

std::string text(double x, double y, const char* anchor, const std::string& content) {
  return "<text x=\"" + coordinate(x) + "\" y=\"" + coordinate(y) + "\" text-anchor=\"" + anchor +
         "\">" + escape_html(content) + "</text>\n";
}

std::string line(double x1, double y1, double x2, double y2, const char* colour) {
  return "<line x1=\"" + coordinate(x1) + "\" y1=\"" + coordinate(y1) + "\" x2=\"" +
         coordinate(x2) + "\" y2=\"" + coordinate(y2) + "\" stroke=\"" + colour + "\"/>\n";
}

std::string frame(const Axes& axes) {
  std::string out;
  for (const double value : axes.x.marks(8)) {
    const double x = axes.x.pixel(value);
    out += line(x, kTop, x, kHeight - kBottom, "#eee");
    out += text(x, kHeight - kBottom + 16, "middle", number(value));
  }
  for (const double value : axes.y.marks(6)) {
    const double y = axes.y.pixel(value);
    out += line(kLeft, y, kWidth - kRight, y, "#eee");
    out += text(kLeft - 6, y + 4, "end", number(value));
  }
  out += line(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "#444");
  return out + line(kLeft, kTop, kLeft, kHeight - kBottom, "#444");
}

// Every n-th point and the last one.
std::vector<std::pair<double, double>> thinned(const Curve& curve) {
  const std::size_t step = curve.points.size() / kMostPoints + 1;
  std::vector<std::pair<double, double>> points;
  for (std::size_t i = 0; i < curve.points.size(); i += step) points.push_back(curve.points[i]);
  if (!curve.points.empty() && (curve.points.size() - 1) % step != 0) {
    points.push_back(curve.points.back());
  }
  return points;
}

std::string path(const Curve& curve, const Axes& axes, const std::string& colour) {
  std::string commands;
  bool drawing = false;
  for (const auto& point : thinned(curve)) {
    if (!is_finite(point)) {
      drawing = false;
      continue;
    }
    commands += (drawing ? "L" : "M") + coordinate(axes.x.pixel(point.first)) + " " +
                coordinate(axes.y.pixel(point.second));
    drawing = true;
  }
  return "<path d=\"" + commands + "\" fill=\"none\" stroke=\"" + colour +
         "\" stroke-width=\"1.8\" stroke-linecap=\"round\"/>\n";
}

}  // namespace

std::string curve_colour(std::size_t i) {
  // Distinct without colour vision as well.
  static constexpr std::array<const char*, 8> kColours = {
      "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f3c8d", "#444444"};
  return kColours[i % kColours.size()];
}

std::vector<double> ticks(double low, double high, int count) {
  const double rough = (high - low) / std::max(1, count);
  if (!(rough > 0) || !std::isfinite(rough)) return {low};
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1., 2., 5.}) {
    if (factor * power >= rough) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> values;
  // Counted in steps, so that 0.1 + 0.1 + 0.1 is 0.3 and the middle is exactly zero.
  for (double n = std::ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; ++n) {
    values.push_back(n * step);
  }
  return values;
}

std::string to_svg(const Chart& chart) {
  Axes axes;
  for (const Curve& curve : chart.curves) {
    for (const auto& point : curve.points) {
      if (!is_finite(point)) continue;
      axes.x.add(point.first);
      axes.y.add(point.second);
    }
  }
  std::string out = "<svg viewBox=\"0 0 640 320\" width=\"640\" height=\"320\" role=\"img\">\n";
  out += text(kLeft, 16, "start", chart.title);
  if (axes.x.empty()) return out + text(kWidth / 2, kHeight / 2, "middle", "no data") + "</svg>\n";
  axes.x.close();
  axes.y.close();
  out += frame(axes);
  out += text((kLeft + kWidth - kRight) / 2, kHeight - 10, "middle", chart.x_label);
  out += "<text transform=\"translate(14 " + coordinate((kTop + kHeight - kBottom) / 2) +
         ") rotate(-90)\" text-anchor=\"middle\">" + escape_html(chart.y_label) + "</text>\n";
  for (std::size_t i = 0; i < chart.curves.size(); ++i) {
    out += path(chart.curves[i], axes, curve_colour(i));
  }
  return out + "</svg>\n";
}

}  // namespace mhla::io
