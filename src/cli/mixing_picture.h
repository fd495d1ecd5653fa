// A mixing matrix as a picture: the matrix, and two of its rows laid out as the block grid.
#pragma once

#include <string>

#include "cli/canvas.h"
#include "mhla/layout.h"
#include "mhla/mixing.h"

namespace mhla::cli {

Canvas draw_mixing(const MixingMatrix& mixing, const BlockLayout& layout, const std::string& title);

}  // namespace mhla::cli
