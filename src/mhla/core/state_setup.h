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
  std::int64_t den_width = 0;  // numbers of a lane's denominator summary: exact: z_b, the sum of
                               // phi(k_den) (dk); shared_position: phi(q_den_w) . z_b (C); none: 0

  // Summaries in memory, lane by lane: dk rows of dv numbers, then the denominator's; rows are
  // padded to whole vectors with zeros. An engine may keep the numbers of a lane in another order.
  std::int64_t row = 0;     // numbers between the rows of a summary
  std::int64_t den_at = 0;  // where a lane's denominator begins
  std::int64_t width = 0;   // numbers of a lane
  std::int64_t size = 0;    // numbers of all lanes

  // What else the open block needs, lane by lane: z | phi(q_den) of every token, for
  // shared_position. A device has a copy of z for every slice, see below.
  std::int64_t key = 0;  // dk padded
  std::int64_t z_copies = 1;
  std::int64_t q_at = 0, open_width = 0;
  // The ring, lane by lane: phi(k) of the last `fold` tokens | v of them.
  std::int64_t ring_v_at = 0, ring_width = 0;

  // Summaries, R and the ring are stored as bf16 and summed in f32; mixtures on their way and z
  // stay f32. See packs() for when.
  bool packed = false;

  // A column slice of the open block's matrices takes up `fold` tokens at a time, each slice at its
  // own steps, so that a step rewrites a small part of them and none rewrites all.
  std::int64_t fold = 0;
  std::int64_t slice = 0, slices = 0;  // columns of a slice, number of slices

  // The first token of the block that slice j has not taken up, with `fill` tokens read of which
  // the first `base` were taken up by all slices.
  std::int64_t level(std::int64_t j, std::int64_t fill, std::int64_t base) const {
    const std::int64_t behind = ((fill - j * fold / slices) % fold + fold) % fold;
    return fill - behind > base ? fill - behind : base;
  }

  // How many blocks the weights serve; nothing for a Toeplitz form, which has no end.
  std::optional<std::int64_t> max_blocks() const;
  // Weights of query block i on key blocks 0..i: [mixing heads, i + 1], one head when shared.
  std::vector<float> mixing_row(std::int64_t i) const;
  std::int64_t mixing_heads() const;
  std::size_t mixing_bytes() const;
};

// Throws, with the reason, when the problem has no streaming form or the mixing does not fit it.
// The problem that is kept has a layout of exactly one block: a stream has no length.
std::shared_ptr<const Setup> make_setup(const Problem& problem, Mixing mixing);

}  // namespace mhla::streaming
