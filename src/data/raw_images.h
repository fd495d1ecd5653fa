// A data set whose pictures lie in memory as bytes, all of one size.
#pragma once

#include "data/image_set.h"

namespace mhla::data {

struct RawImages {
  std::string format;
  std::string where;  // in front of a picture's number in its name
  int width = 0, height = 0;
  std::vector<std::uint8_t> pixels;   // [count, height, width, 3]
  std::vector<std::uint8_t> targets;  // [count]
  std::vector<std::string> classes;
};

std::unique_ptr<ImageSet> make_raw_images(RawImages raw);  // throws where a target has no class

// The path of the file, or of the same with .gz or .xz; empty where there is none.
std::string find_packed(const std::string& folder, const std::string& name);

// Lines of a text file; empty where there is no file.
std::vector<std::string> read_lines(const std::string& path);

}  // namespace mhla::data
