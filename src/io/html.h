// A page of HTML that needs nothing beside itself: text, tables, charts, pictures.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/chart.h"

namespace mhla::io {

std::string escape_html(std::string_view text);
std::string base64(std::string_view bytes);

struct Picture {
  std::string png{};  // the bytes of a PNG file
  std::string caption{};
  bool marked = false;  // drawn with a red frame: what went wrong
};

class HtmlPage {
 public:
  explicit HtmlPage(std::string title) : title_(std::move(title)) {}

  void heading(std::string_view text);
  void paragraph(std::string_view text);
  void code(std::string_view text);
  // The first row is the header. Cells that read as numbers are set to the right.
  void table(const std::vector<std::vector<std::string>>& rows);
  void chart(const Chart& chart);
  void pictures(const std::vector<Picture>& pictures);

  std::string html() const;
  void write(const std::string& path) const;  // atomically; throws Error(io)

 private:
  std::string title_, body_;
};

}  // namespace mhla::io
