// The elements of a page, escaped, and its style sheet.
#include "io/html.h"

#include <algorithm>
#include <cstdint>

#include "mhla/core/atomic_file.h"
#include "mhla/core/text.h"

namespace mhla::io {
namespace {

constexpr const char* kStyle = R"(
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { padding: .25em .8em; border-bottom: 1px solid #ddd; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { font: 12px system-ui, sans-serif; max-width: 100%; height: auto; }
pre { background: #f5f5f5; padding: .8em; overflow-x: auto; }
.legend span { margin-right: 1.2em; }
.pictures { display: flex; flex-wrap: wrap; gap: .8em; }
figure { margin: 0; font-size: 12px; text-align: center; }
figure img { width: 96px; image-rendering: pixelated; border: 3px solid #ddd; }
figure.marked img { border-color: #c00; }
)";

std::string element(const std::string& tag, std::string_view content) {
  return "<" + tag + ">" + escape_html(content) + "</" + tag + ">\n";
}

bool reads_as_number(std::string_view text) {
  if (text.ends_with('%')) text.remove_suffix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return parse_number<double>(text).has_value();
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t given = std::min<std::size_t>(3, bytes.size() - i);
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (j < given ? static_cast<std::uint8_t>(bytes[i + j]) : 0U);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      out += j <= given ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return out;
}

void HtmlPage::heading(std::string_view text) { body_ += element("h2", text); }
void HtmlPage::paragraph(std::string_view text) { body_ += element("p", text); }
void HtmlPage::code(std::string_view text) { body_ += element("pre", text); }

void HtmlPage::table(const std::vector<std::vector<std::string>>& rows) {
  body_ += "<table>\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    body_ += "<tr>";
    for (const std::string& cell : rows[i]) {
      const char* open = i == 0 ? "<th>" : reads_as_number(cell) ? "<td class=\"number\">" : "<td>";
      body_ += open + escape_html(cell) + (i == 0 ? "</th>" : "</td>");
    }
    body_ += "</tr>\n";
  }
  body_ += "</table>\n";
}

void HtmlPage::chart(const Chart& chart) {
  body_ += to_svg(chart) + "<p class=\"legend\">";
  for (std::size_t i = 0; i < chart.curves.size(); ++i) {
    body_ += "<span style=\"color:" + curve_colour(i) + "\">&#9632; " +
             escape_html(chart.curves[i].name) + "</span>";
  }
  body_ += "</p>\n";
}

void HtmlPage::pictures(const std::vector<Picture>& pictures) {
  body_ += "<div class=\"pictures\">\n";
  for (const Picture& picture : pictures) {
    body_ += std::string(picture.marked ? "<figure class=\"marked\">" : "<figure>") +
             "<img alt=\"\" src=\"data:image/png;base64," + base64(picture.png) +
             "\"><figcaption>" + escape_html(picture.caption) + "</figcaption></figure>\n";
  }
  body_ += "</div>\n";
}

std::string HtmlPage::html() const {
  return "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>" +
         escape_html(title_) + "</title>\n<style>" + kStyle + "</style>\n" + element("h1", title_) +
         body_ + "</html>\n";
}

void HtmlPage::write(const std::string& path) const {
  const std::string page = html();
  AtomicFile file(path, "report");
  file.write(page.data(), page.size());
  file.commit();
}

}  // namespace mhla::io
