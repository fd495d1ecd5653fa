// Pages: escaping, charts that cannot break, pictures inside.
#include "io/html.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "mhla/error.h"

namespace mhla::io {
namespace {

TEST(Html, TextFromOutsideIsEscapedEverywhere) {
  HtmlPage page("<t>");
  page.heading("a & b");
  page.table({{"<th>"}, {"\"quoted\""}});
  page.chart({.title = "<svg>", .curves = {{.name = "<c>", .points = {{0, 1}, {1, 2}}}}});
  page.pictures({{.png = "x", .caption = "<script>"}});
  const std::string html = page.html();
  for (const char* raw : {"<t>", "<c>", "<script>", "\"quoted\"", "a & b"}) {
    EXPECT_EQ(html.find(raw), std::string::npos) << raw;
  }
  EXPECT_NE(html.find("&lt;script&gt;"), std::string::npos);
}

TEST(Html, Base64EqualsTheExamplesOfItsStandard) {  // RFC 4648, section 10
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
}

TEST(Html, NumbersAreSetToTheRight) {
  HtmlPage page("t");
  page.table({{"name", "top-1"}, {"mhla", "75.8 %"}});
  EXPECT_NE(page.html().find("<td>mhla</td><td class=\"number\">75.8 %</td>"), std::string::npos);
}

TEST(Html, AFileThatCannotBeWrittenIsAnError) {
  const HtmlPage page("t");
  EXPECT_THROW(page.write("/nonexistent/folder/report.html"), Error);
}

TEST(Chart, TicksAreRoundAndInside) {
  EXPECT_EQ(ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  const std::vector<double> around_zero = ticks(-0.25, 0.31, 5);
  EXPECT_NE(std::find(around_zero.begin(), around_zero.end(), 0.), around_zero.end());
  EXPECT_EQ(ticks(3, 3, 5), std::vector<double>{3});
}

TEST(Chart, AnyPointsGiveADrawingWithFiniteCoordinates) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const std::vector<std::vector<std::pair<double, double>>> cases = {
      {},
      {{1, 1}},
      {{0, 0}, {1, 0}},
      {{0, NAN}, {1, kInfinite}},
      {{0, 1}, {1, NAN}, {2, 3}, {3, -kInfinite}, {4, 5}},
      {{0, -1e300}, {1, 1e300}}};
  for (const auto& points : cases) {
    const std::string svg = to_svg({.title = "t", .curves = {{.name = "c", .points = points}}});
    EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
    EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
    EXPECT_TRUE(svg.ends_with("</svg>\n"));
  }
}

TEST(Chart, ALongCurveIsThinnedAndKeepsItsEnd) {
  Curve curve{.name = "c"};
  for (int i = 0; i <= 100000; ++i) curve.points.emplace_back(i, i == 100000 ? 7 : 0);
  const std::string svg = to_svg({.title = "t", .curves = {curve}});
  EXPECT_LT(svg.size(), 20000U);
  EXPECT_NE(svg.find("L624.0 34.0"), std::string::npos);  // the last point: right edge, top
}

}  // namespace
}  // namespace mhla::io
