// One (batch, head, packed sequence) of a problem: its summaries, mixtures and denominators.
#pragma once

#include "mhla/reference/access.h"

namespace mhla::reference {

// Scratch of the forward pass, sized for the largest sequence.
struct Scratch {
  Scratch(const Problem& problem, Arena& arena)
      : summaries(arena.take(problem.keys().mixing_size() * problem.dk * problem.dv)),
        sums(arena.take(problem.keys().mixing_size() * problem.dk)),
        mixed_summary(arena.take(problem.dk * problem.dv)),
        mixed_sum(arena.take(problem.dk)),
        open_sum(arena.take(problem.dk)),
        own(arena.take(problem.layout.tokens())),
        q(arena.take(problem.dk)),
        q_den(arena.take(problem.dk)),
        k(arena.take(problem.dk)),
        k_den(arena.take(problem.dk)),
        v(arena.take(problem.dv)),
        numerator(arena.take(problem.dv)) {}

  static std::size_t size(const Problem& p) {
    const auto blocks = static_cast<std::size_t>(p.keys().mixing_size());
    const auto dk = static_cast<std::size_t>(p.dk), dv = static_cast<std::size_t>(p.dv);
    return (blocks + 1) * (dk * dv + dk) + static_cast<std::size_t>(p.layout.tokens()) + 5 * dk +
           2 * dv;
  }

  std::span<double> summaries;      // S_b [Mk, dk, dv]
  std::span<double> sums;           // z_b [Mk, dk]
  std::span<double> mixed_summary;  // S~ of the query block at hand [dk, dv]
  std::span<double> mixed_sum;      // z~ [dk]
  std::span<double> open_sum;       // causal: keys of the open block so far, unweighted [dk]
  std::span<double> own;            // shared_position: phi(q_t) . z of t's own block [tokens]
  std::span<double> q, q_den, k, k_den, v, numerator;  // one token
};

template <typename T>
struct Head {
  const Problem& problem;
  Rows<T> q, k, v, q_den, k_den;
  Mixing mixing;
  std::span<const Block> query_blocks, key_blocks;  // of one packed sequence
  Scratch& scratch;

  double scale() const { return problem.scale; }
  std::size_t dk() const { return static_cast<std::size_t>(problem.dk); }
  std::size_t dv() const { return static_cast<std::size_t>(problem.dv); }
  bool causal() const { return problem.mask == Mask::causal; }
  bool shared_position() const { return problem.normalizer == Normalizer::shared_position; }
  std::int64_t closed(std::int64_t i) const {
    return closed_blocks(problem.mask, i, static_cast<std::int64_t>(key_blocks.size()));
  }
  std::span<double> summary(std::int64_t b) const {
    return scratch.summaries.subspan(static_cast<std::size_t>(b) * dk() * dv(), dk() * dv());
  }
  std::span<double> sum(std::int64_t b) const {
    return scratch.sums.subspan(static_cast<std::size_t>(b) * dk(), dk());
  }

  void load_key(std::int64_t token) const {
    k.load_mapped(problem.feature_map, token, scratch.k);
    k_den.load_mapped(problem.feature_map, token, scratch.k_den);
    v.load(token, scratch.v);
  }
  void load_query(std::int64_t token) const {
    q.load_mapped(problem.feature_map, token, scratch.q);
    q_den.load_mapped(problem.feature_map, token, scratch.q_den);
  }

  // S_b, z_b of Eq. 3, and q . z of each query with its own block (spec 1.3).
  void summarize() const {
    std::fill(scratch.summaries.begin(), scratch.summaries.end(), 0.0);
    std::fill(scratch.sums.begin(), scratch.sums.end(), 0.0);
    for (std::size_t b = 0; b < key_blocks.size(); ++b) {
      std::int64_t tokens = key_blocks[b].tokens();
#ifdef MHLA_BREAK_KERNEL
      tokens -= 1;  // tests build this variant to see that verification notices
#endif
      for (std::int64_t w = 0; w < tokens; ++w) {
        load_key(key_blocks[b].token(w));
        add_outer(1, scratch.k, scratch.v, summary(static_cast<std::int64_t>(b)));
        add_scaled(1, scratch.k_den, sum(static_cast<std::int64_t>(b)));
      }
    }
    if (!shared_position()) return;
    for (std::size_t b = 0; b < query_blocks.size(); ++b) {
      for (std::int64_t w = 0; w < query_blocks[b].tokens(); ++w) {
        const std::int64_t token = query_blocks[b].token(w);
        load_query(token);
        scratch.own[token] = dot(scratch.q_den, sum(static_cast<std::int64_t>(b)));
      }
    }
  }

  // S~_i and z~_i over the closed key blocks.
  void mix(std::int64_t i) const {
    std::fill(scratch.mixed_summary.begin(), scratch.mixed_summary.end(), 0.0);
    std::fill(scratch.mixed_sum.begin(), scratch.mixed_sum.end(), 0.0);
    std::fill(scratch.open_sum.begin(), scratch.open_sum.end(), 0.0);
    for (std::int64_t b = 0; b < closed(i); ++b) {
      add_scaled(mixing(i, b), summary(b), scratch.mixed_summary);
      add_scaled(mixing(i, b), sum(b), scratch.mixed_sum);
    }
  }

  // Causal: the token joins the block it is in (spec 1.8).
  void join(std::int64_t i, std::int64_t token) const {
    load_key(token);
    add_outer(mixing(i, i), scratch.k, scratch.v, scratch.mixed_summary);
    add_scaled(mixing(i, i), scratch.k_den, scratch.mixed_sum);
    add_scaled(1, scratch.k_den, scratch.open_sum);
  }

  // Denominator of position w of query block i, whose token is loaded; eps included.
  double denominator(std::int64_t i, std::int64_t w) const {
    double sum = 0;
    if (problem.normalizer == Normalizer::exact) {
      sum = dot(scratch.q_den, scratch.mixed_sum);
    } else {
      for (std::int64_t b = 0; b < closed(i); ++b) {
        const std::int64_t token = paired_token(query_blocks[i], w, query_blocks[b]);
        if (token >= 0) sum += mixing(i, b) * scratch.own[token];
      }
      if (causal()) sum += mixing(i, i) * dot(scratch.q_den, scratch.open_sum);
    }
    return scale() * sum + problem.denominator_eps();
  }

  // scale * q S~ of the loaded query.
  void read_out() const {
    std::fill(scratch.numerator.begin(), scratch.numerator.end(), 0.0);
    add_row_times_matrix(scratch.q, scratch.mixed_summary, scratch.numerator);
    for (double& x : scratch.numerator) x *= scale();
  }
};

// Calls f with every (batch, head, sequence) of the problem, in order.
template <typename T, typename Inputs, typename F>
void for_each_head(const Problem& problem, const Inputs& in, Scratch& scratch, F&& f) {
  const bool separate = problem.separate_denominator;
  const auto part = [](const BlockLayout& layout, std::size_t s) {
    const Sequence& sequence = layout.sequences()[s];
    return std::span<const Block>(layout.blocks().data() + sequence.first_block,
                                  static_cast<std::size_t>(sequence.blocks));
  };
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    for (std::int64_t h = 0; h < problem.heads; ++h) {
      for (std::size_t s = 0; s < problem.layout.sequences().size(); ++s) {
        const Head<T> head{problem,
                           {in.q, b, h},
                           {in.k, b, h},
                           {in.v, b, h},
                           {separate ? in.q_den : in.q, b, h},
                           {separate ? in.k_den : in.k, b, h},
                           {in.mixing, h},
                           part(problem.layout, s),
                           part(problem.keys(), s),
                           scratch};
        f(head, b, h);
      }
    }
  }
}

}  // namespace mhla::reference
