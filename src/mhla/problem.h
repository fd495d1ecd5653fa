// One call of the operator, described completely.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "mhla/layout.h"
#include "mhla/tensor_view.h"

namespace mhla {

enum class Mask {
  none,
  causal,        // token by token, in the order (block, position inside the block)
  block_causal,  // bidirectional inside a block, causal between blocks
};

enum class Normalizer {
  exact,            // the paper: o = (q S~) / (q z~), rows of the attention sum to one
  shared_position,  // the authors' code: q . z of each block's own query at the same position,
                    // mixed
  none,
};

enum class FeatureMap { relu_eps, relu, elu1, identity };

inline constexpr double kReluEps = 1e-6;  // added by relu_eps, as in the authors' code

struct Problem {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t dk = 64;  // width of q and k
  std::int64_t dv = 64;  // width of v and o
  BlockLayout layout;    // of the queries, and of the keys unless layout_k is given
  std::optional<BlockLayout> layout_k = std::nullopt;  // cross-attention
  Mask mask = Mask::none;
  Normalizer normalizer = Normalizer::exact;
  FeatureMap feature_map = FeatureMap::relu_eps;
  double scale = 1.0;  // multiplies every score, so it cancels where a normaliser divides it out
  // Added to the denominator. Default: 0 for exact (rows sum to one), 1e-6 for shared_position.
  std::optional<double> eps = std::nullopt;
  bool separate_denominator =
      false;                     // q_den and k_den are given: rotary numerator, plain denominator
  bool mixing_per_head = false;  // mixing is [H, Mq, Mk] instead of [Mq, Mk]
  DType dtype = DType::f32;      // of q, k, v, o and their gradients
  Device device = Device::cpu();

  const BlockLayout& keys() const { return layout_k ? *layout_k : layout; }
  double denominator_eps() const;
  std::string to_string() const;  // `key=value` words, read back by parse_problem
  friend bool operator==(const Problem&, const Problem&) = default;
};

// Throws with the reason when the description is contradictory or has no meaning.
void check(const Problem& problem);

// Reads what Problem::to_string writes: `sequence=2048 block=64 heads=4 dk=128 mask=causal`.
// Keys: see problem_fields(). Unknown keys are errors that name the nearest known one.
Problem parse_problem(std::string_view text);

// The one list of what can be set in text: the command line and its help are made from it.
struct ProblemField {
  const char* key;
  const char* values;  // "none|causal|block_causal", "COUNT", "AxB[xC][+...]"
  const char* help;
};
const std::vector<ProblemField>& problem_fields();

const char* name(Mask mask);
const char* name(Normalizer normalizer);
const char* name(FeatureMap map);

}  // namespace mhla
