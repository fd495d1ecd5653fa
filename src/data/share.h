// Which part of each global batch a process takes.
#pragma once

namespace mhla::data {

struct Share {
  int rank = 0, world = 1;
};

}  // namespace mhla::data
