// What a stream is, fixed when it starts: the problem, the mixing weights, the sizes they imply.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "mhla/mixing.h"
#include "mhla/problem.h"

namespace mhla::streaming {

using Mixing = std::variant<MixingMatrix, ToeplitzMixing>;

// Shared by a state and all its branches.
struct Setup {
  Problem problem;
  Mixing mixing;
  std::int64_t block = 0;      // C, tokens per block
  std::int64_t lanes = 0;      // B * H, the independent streams
  std::int64_t s_width = 0;    // dk * dv, numbers of a lane's numerator summary
  std::int64_t den_width = 0;  // numbers of a lane's denominator summary, see Summary::den

  // How many blocks the weights serve; nothing for a Toeplitz form, which has no end.
  std::optional<std::int64_t> max_blocks() const;
  // Weights of query block i on key blocks 0..i: [mixing heads, i + 1], one head when shared.
  std::vector<float> row(std::int64_t i) const;
  std::int64_t mixing_heads() const;
  std::size_t mixing_bytes() const;
};

// Throws, with the reason, when the problem has no streaming form or the mixing does not fit it.
// The problem that is kept has a layout of exactly one block: a stream has no length.
std::shared_ptr<const Setup> make_setup(const Problem& problem, Mixing mixing);

}  // namespace mhla::streaming
