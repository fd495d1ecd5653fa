// Reference backward pass: spec 1.4 written out, one query block at a time.
#include "mhla/reference/head.h"
#include "mhla/reference/reference.h"

namespace mhla::reference {
namespace {

// Gradients with respect to phi(q), phi(k), v and the summaries of one sequence, and to mixing.
struct Gradients {
  Gradients(const Problem& p, Arena& arena)
      : d_summaries(arena.take(p.keys().mixing_size() * p.dk * p.dv)),
        d_sums(arena.take(p.keys().mixing_size() * p.dk)),
        d_mixed_summary(arena.take(p.dk * p.dv)),
        d_mixed_sum(arena.take(p.dk)),
        d_open_sum(arena.take(p.dk)),
        d_own(arena.take(p.layout.tokens())),
        d_q(arena.take(p.layout.tokens() * p.dk)),
        d_q_den(arena.take(p.layout.tokens() * p.dk)),
        d_k(arena.take(p.keys().tokens() * p.dk)),
        d_k_den(arena.take(p.keys().tokens() * p.dk)),
        d_v(arena.take(p.keys().tokens() * p.dv)),
        d_numerator(arena.take(p.layout.max_block_tokens() * p.dv)),
        d_denominator(arena.take(p.layout.max_block_tokens())),
        d_mixing(arena.take(mixing_size(p))) {}

  static std::int64_t mixing_size(const Problem& p) {
    return (p.mixing_per_head ? p.heads : 1) * p.layout.mixing_size() * p.keys().mixing_size();
  }
  static std::size_t size(const Problem& p) {
    const std::int64_t nq = p.layout.tokens(), nk = p.keys().tokens();
    const std::int64_t block = p.layout.max_block_tokens();
    return static_cast<std::size_t>((p.keys().mixing_size() + 1) * (p.dk * p.dv + p.dk) + p.dk +
                                    nq + 2 * nq * p.dk + 2 * nk * p.dk + nk * p.dv +
                                    block * (p.dv + 1) + mixing_size(p));
  }
  void clear_head() {
    for (const std::span<double> part :
         {d_summaries, d_sums, d_own, d_q, d_q_den, d_k, d_k_den, d_v}) {
      std::fill(part.begin(), part.end(), 0.0);
    }
  }

  std::span<double> d_summaries, d_sums;                       // of S_b, z_b
  std::span<double> d_mixed_summary, d_mixed_sum, d_open_sum;  // of S~_i, z~_i
  std::span<double> d_own;                                     // shared_position: of q . z_own
  std::span<double> d_q, d_q_den, d_k, d_k_den, d_v;           // by token, of the mapped values
  std::span<double> d_numerator, d_denominator;                // of the query block at hand
  std::span<double> d_mixing;  // [H or 1, Mq, Mk], over the whole call
};

inline std::span<double> row(std::span<double> matrix, std::int64_t index, std::size_t width) {
  return matrix.subspan(static_cast<std::size_t>(index) * width, width);
}

template <typename T>
class HeadBackward {
 public:
  HeadBackward(const Head<T>& head, Gradients& g, const Rows<T>& d_o, std::int64_t h)
      : head_(head), s_(head.scratch), g_(g), d_o_(d_o) {
    const Problem& p = head.problem;
    cols_ = p.keys().mixing_size();
    d_mixing_ = g.d_mixing.subspan(
        static_cast<std::size_t>((p.mixing_per_head ? h : 0) * p.layout.mixing_size() * cols_));
  }

  void run() {
    g_.clear_head();
    head_.summarize();
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(head_.query_blocks.size()); ++i) {
      queries(i);
      if (head_.causal()) open_block(i);
      closed_blocks(i);
    }
    if (head_.shared_position()) own_denominators();
    keys();
  }

 private:
  double& d_mixing(std::int64_t i, std::int64_t b) { return d_mixing_[i * cols_ + b]; }

  // d_q, and the gradients of S~_i and z~_i, summed over the block unless it is causal.
  void queries(std::int64_t i) {
    const Block& block = head_.query_blocks[i];
    head_.mix(i);
    std::fill(g_.d_mixed_summary.begin(), g_.d_mixed_summary.end(), 0.0);
    std::fill(g_.d_mixed_sum.begin(), g_.d_mixed_sum.end(), 0.0);
    std::fill(g_.d_open_sum.begin(), g_.d_open_sum.end(), 0.0);
    for (std::int64_t w = 0; w < block.tokens(); ++w) {
      const std::int64_t token = block.token(w);
      if (head_.causal()) head_.join(i, token);
      head_.load_query(token);
      quotient(i, w, token);
      const auto d_num = row(g_.d_numerator, w, head_.dv());
      add_matrix_times_row(head_.scale(), s_.mixed_summary, d_num, row(g_.d_q, token, head_.dk()));
      denominator_of_query(i, w, token);
      if (!head_.causal()) accumulate_mixed(w);
    }
  }

  // y = num / den: d_num = g / den, d_den = -<g, y> / den. double zero denominator passes nothing.
  void quotient(std::int64_t i, std::int64_t w, std::int64_t token) {
    const auto d_num = row(g_.d_numerator, w, head_.dv());
    d_o_.load(token, d_num);
    g_.d_denominator[w] = 0;
    if (head_.problem.normalizer == Normalizer::none) return;
    const double denominator = head_.denominator(i, w);
    head_.read_out();
    const double inverse = denominator == 0 ? 0.0 : 1.0 / denominator;
    g_.d_denominator[w] = -dot(d_num, s_.numerator) * inverse * inverse;
    for (double& x : d_num) x *= inverse;
  }

  void denominator_of_query(std::int64_t i, std::int64_t w, std::int64_t token) {
    const double d_den = head_.scale() * g_.d_denominator[w];
    const auto d_q_den = row(g_.d_q_den, token, head_.dk());
    if (head_.problem.normalizer == Normalizer::exact) {
      add_scaled(d_den, s_.mixed_sum, d_q_den);
    } else if (head_.shared_position()) {
      for (std::int64_t b = 0; b < head_.closed(i); ++b) {
        const std::int64_t other = paired_token(head_.query_blocks[i], w, head_.query_blocks[b]);
        if (other < 0) continue;
        g_.d_own[other] += d_den * head_.mixing(i, b);
        d_mixing(i, b) += d_den * s_.own[other];
      }
      if (!head_.causal()) return;
      add_scaled(d_den * head_.mixing(i, i), s_.open_sum, d_q_den);
      d_mixing(i, i) += d_den * dot(s_.q_den, s_.open_sum);
    }
  }

  // The loaded query's share of the gradients of S~_i, z~_i (and of the open z of a causal block).
  void accumulate_mixed(std::int64_t w) {
    const double d_den = head_.scale() * g_.d_denominator[w];
    add_outer(head_.scale(), s_.q, row(g_.d_numerator, w, head_.dv()), g_.d_mixed_summary);
    if (head_.problem.normalizer == Normalizer::exact) {
      add_scaled(d_den, s_.q_den, g_.d_mixed_sum);
    } else if (head_.causal() && head_.shared_position()) {
      add_scaled(d_den, s_.q_den, g_.d_open_sum);
    }
  }

  // Causal: a key is seen by the queries from its own position on, so walk backwards.
  void open_block(std::int64_t i) {
    const Block& block = head_.query_blocks[i];
    const double weight = head_.mixing(i, i);
    for (std::int64_t w = block.tokens() - 1; w >= 0; --w) {
      const std::int64_t token = block.token(w);
      head_.load_query(token);
      accumulate_mixed(w);
      head_.load_key(token);
      std::fill(s_.numerator.begin(), s_.numerator.end(), 0.0);
      add_row_times_matrix(s_.k, g_.d_mixed_summary, s_.numerator);  // dS~^T k
      add_scaled(weight, s_.numerator, row(g_.d_v, token, head_.dv()));
      add_matrix_times_row(weight, g_.d_mixed_summary, s_.v, row(g_.d_k, token, head_.dk()));
      add_scaled(weight, g_.d_mixed_sum, row(g_.d_k_den, token, head_.dk()));
      add_scaled(weight, g_.d_open_sum, row(g_.d_k_den, token, head_.dk()));
      d_mixing(i, i) += dot(s_.numerator, s_.v) + dot(s_.k_den, g_.d_mixed_sum);
    }
  }

  // dS_b += m_ib dS~_i and dm_ib += <dS~_i, S_b>, for summaries and sums alike.
  void closed_blocks(std::int64_t i) {
    for (std::int64_t b = 0; b < head_.closed(i); ++b) {
      const double weight = head_.mixing(i, b);
      add_scaled(weight, g_.d_mixed_summary, row(g_.d_summaries, b, head_.dk() * head_.dv()));
      add_scaled(weight, g_.d_mixed_sum, row(g_.d_sums, b, head_.dk()));
      d_mixing(i, b) += dot(g_.d_mixed_summary, head_.summary(b)) +
                        dot(g_.d_mixed_sum, head_.sum(b));
    }
  }

  void own_denominators() {
    for (std::size_t b = 0; b < head_.query_blocks.size(); ++b) {
      for (std::int64_t w = 0; w < head_.query_blocks[b].tokens(); ++w) {
        const std::int64_t token = head_.query_blocks[b].token(w);
        const auto block = static_cast<std::int64_t>(b);
        head_.load_query(token);
        add_scaled(g_.d_own[token], head_.sum(block), row(g_.d_q_den, token, head_.dk()));
        add_scaled(g_.d_own[token], s_.q_den, row(g_.d_sums, block, head_.dk()));
      }
    }
  }

  void keys() {
    for (std::size_t b = 0; b < head_.key_blocks.size(); ++b) {
      const auto block = static_cast<std::int64_t>(b);
      const auto d_summary = row(g_.d_summaries, block, head_.dk() * head_.dv());
      for (std::int64_t w = 0; w < head_.key_blocks[b].tokens(); ++w) {
        const std::int64_t token = head_.key_blocks[b].token(w);
        head_.load_key(token);
        add_matrix_times_row(1, d_summary, s_.v, row(g_.d_k, token, head_.dk()));
        add_row_times_matrix(s_.k, d_summary, row(g_.d_v, token, head_.dv()));
        add_scaled(1, row(g_.d_sums, block, head_.dk()), row(g_.d_k_den, token, head_.dk()));
      }
    }
  }

  const Head<T>& head_;
  Scratch& s_;
  Gradients& g_;
  const Rows<T>& d_o_;
  std::int64_t cols_ = 0;
  std::span<double> d_mixing_;
};

// Writes the gradient of the unmapped rows; `extra` is the denominator's share where it has no
// tensor of its own.
template <typename T>
void store_mapped(FeatureMap map, std::span<const Block> blocks, const Rows<T>& x,
                  std::span<const double> grad, std::span<const double> extra, std::int64_t width,
                  const Rows<T>& out) {
  if (!out) return;
  for (const Block& block : blocks) {
    for (std::int64_t w = 0; w < block.tokens(); ++w) {
      const std::int64_t token = block.token(w);
      for (std::int64_t d = 0; d < width; ++d) {
        const std::int64_t at = token * width + d;
        const double total = grad[at] + (extra.empty() ? 0.0 : extra[at]);
        out.set(token, d, total * feature_slope(map, x.get(token, d)));
      }
    }
  }
}

inline void store_mixing(const Problem& problem, std::span<const double> grad,
                         const TensorView& out) {
  if (!out.defined()) return;
  const bool per_head = problem.mixing_per_head;
  const std::int64_t rows = problem.layout.mixing_size(), cols = problem.keys().mixing_size();
  const std::int64_t row_stride = out.strides[out.rank - 2];
  for (std::int64_t h = 0; h < (per_head ? problem.heads : 1); ++h) {
    for (std::int64_t i = 0; i < out.shape[out.rank - 2]; ++i) {
      for (std::int64_t b = 0; b < out.shape[out.rank - 1]; ++b) {
        const double value = i < rows && b < cols ? grad[(h * rows + i) * cols + b] : 0.0;
        const std::int64_t at = (per_head ? h * out.strides[0] : 0) + i * row_stride + b;
        if (out.dtype == DType::f64) static_cast<double*>(out.data)[at] = value;
        else static_cast<float*>(out.data)[at] = static_cast<float>(value);
      }
    }
  }
}

}  // namespace

template <typename T>
void backward(const Problem& problem, const BackwardInputs& in, const BackwardOutputs& out,
              const Workspace& workspace) {
  Arena arena(workspace);
  Scratch scratch(problem, arena);
  Gradients g(problem, arena);
  std::fill(g.d_mixing.begin(), g.d_mixing.end(), 0.0);
  const FeatureMap map = problem.feature_map;
  const bool separate = problem.separate_denominator;
  for_each_head<T>(problem, in, scratch, [&](const Head<T>& head, auto batch, auto h) {
    const auto rows = [&](const TensorView& view) { return Rows<T>(view, batch, h); };
    const Rows<T> d_o = rows(in.d_o);
    HeadBackward<T>(head, g, d_o, h).run();
    const auto extra = [&](std::span<double> part) {
      return separate ? std::span<double>() : part;
    };
    store_mapped<T>(map, head.query_blocks, head.q, g.d_q, extra(g.d_q_den), problem.dk,
                    rows(out.d_q));
    store_mapped<T>(map, head.key_blocks, head.k, g.d_k, extra(g.d_k_den), problem.dk,
                    rows(out.d_k));
    store_mapped<T>(FeatureMap::identity, head.key_blocks, head.v, g.d_v, {}, problem.dv,
                    rows(out.d_v));
    store_mapped<T>(map, head.query_blocks, head.q_den, g.d_q_den, {}, problem.dk,
                    rows(out.d_q_den));
    store_mapped<T>(map, head.key_blocks, head.k_den, g.d_k_den, {}, problem.dk, rows(out.d_k_den));
  });
  store_mixing(problem, g.d_mixing, out.d_mixing);
}

std::size_t backward_workspace(const Problem& problem) {
  return Scratch::size(problem) + Gradients::size(problem);
}

template void backward<float>(const Problem&, const BackwardInputs&, const BackwardOutputs&,
                              const Workspace&);
template void backward<double>(const Problem&, const BackwardInputs&, const BackwardOutputs&,
                               const Workspace&);
template void backward<BFloat16>(const Problem&, const BackwardInputs&, const BackwardOutputs&,
                                 const Workspace&);
template void backward<Float16>(const Problem&, const BackwardInputs&, const BackwardOutputs&,
                                const Workspace&);

}  // namespace mhla::reference
