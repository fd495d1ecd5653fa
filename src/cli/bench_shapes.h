// What `mhla bench cpu` measures: the attention of the paper's models, and small ones for a try.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mhla/problem.h"

namespace mhla::cli {

struct BenchShape {
  std::string name;
  Problem problem;                           // f32
  bool fused = true;                         // q, k, v are slices of a [B, N, 3, H, D] projection
  bool is_long = false;                      // long enough for a second thread to pay fully
  bool tiny = false;                         // only when asked for by name
  bool with_softmax = false;                 // softmax runs once in f32, however long it takes
  std::vector<std::int64_t> positions = {};  // decode: steps are timed after so many tokens
};

const std::vector<BenchShape>& bench_shapes();

// The shapes of these names, or all but the tiny ones. Unknown names are errors with a hint.
std::vector<BenchShape> select_shapes(const std::vector<std::string>& names);

// 16 blocks, so that almost all work is proportional to the tokens.
BenchShape growth_shape(std::int64_t tokens);

}  // namespace mhla::cli
