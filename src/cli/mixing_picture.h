// A mixing matrix as a picture: the matrix, and two of its rows laid out as the block grid.
#pragma once

#include <string>

#include "cli/canvas.h"
#include "mhla/layout.h"
#include "mhla/mixing.h"

namespace mhla::cli {

// Throws when there are too many blocks for a picture; to be asked before the work begins.
void check_drawable(const BlockLayout& layout);
Canvas draw_mixing(const MixingMatrix& mixing, const BlockLayout& layout, const std::string& title);

}  // namespace mhla::cli
