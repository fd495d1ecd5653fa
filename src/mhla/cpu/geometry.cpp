// Counting what the kernels need, and finding the rows of one head.
#include "mhla/cpu/geometry.h"

namespace mhla::cpu {
namespace {

Index chunks(Index width) { return (width + kChunk - 1) / kChunk; }

Index box_volume(const Geometry& g) { return g.box[0] * g.box[1] * g.box[2]; }

// Row-major operand of `tokens` rows: all chunks but the last keep room for kTokens.
Index row_major(Index tokens, Index chunk_count) {
  return ((chunk_count - 1) * kTokens + tokens) * kRowStride;
}

Rows rows_of(const TensorView& view, Index batch, Index head) {
  if (!view.defined()) return {};
  const Index element = static_cast<Index>(size_of(view.dtype));
  return {
      static_cast<char*>(view.data) + (batch * view.strides[0] + head * view.strides[2]) * element,
      view.strides[1]};
}

struct Place {
  Index batch, head, sequence;
};

Place place(const Problem& problem, Index at) {
  const Index sequences = static_cast<Index>(problem.layout.sequences().size());
  return {at / sequences / problem.heads, at / sequences % problem.heads, at % sequences};
}

Head common_head(const Problem& problem, const TensorView& mixing, const Place& p) {
  const Sequence& query = problem.layout.sequences()[static_cast<std::size_t>(p.sequence)];
  const Sequence& key = problem.keys().sequences()[static_cast<std::size_t>(p.sequence)];
  Head head{};
  head.query_blocks = problem.layout.blocks().data() + query.first_block;
  head.key_blocks = problem.keys().blocks().data() + key.first_block;
  head.mq = query.blocks;
  head.mk = key.blocks;
  head.mixing = static_cast<const float*>(mixing.data) +
                (mixing.rank == 3 ? p.head * mixing.strides[0] : 0);
  head.mixing_stride = mixing.strides[static_cast<std::size_t>(mixing.rank - 2)];
  return head;
}

}  // namespace

Flat::Flat(const Problem& problem, bool transposed, Index lanes, bool halved)
    : rows(transposed ? problem.dv : problem.dk),
      width(transposed ? problem.dk : problem.dv),
      lanes(lanes) {
  if (halved) rows = HalfUp(rows);
  const Geometry g(problem, lanes);
  extra = round_up(rows * round_up(width, lanes), 2 * lanes);
  extra_length = g.shared ? box_volume(g) : g.normalized ? problem.dk : 0;
  size = extra + round_up(extra_length, 2 * lanes);
}

Geometry::Geometry(const Problem& problem, Index lanes)
    : tokens(std::min<Index>(
          kTokens, std::max(problem.layout.max_block_tokens(), problem.keys().max_block_tokens()))),
      dk_chunks(chunks(problem.dk)),
      dv_chunks(chunks(problem.dv)),
      dk_padded(round_up(problem.dk, lanes)),
      dv_padded(round_up(problem.dv, lanes)),
      mq(problem.layout.mixing_size()),
      mk(problem.keys().mixing_size()),
      box{1, 1, 1},
      normalized(problem.normalizer != Normalizer::none),
      shared(problem.normalizer == Normalizer::shared_position),
      causal(problem.mask == Mask::causal),
      one_chunk(tokens >= problem.layout.max_block_tokens() &&
                tokens >= problem.keys().max_block_tokens()),
      masked(problem.mask != Mask::none) {
  if (!shared) return;
  for (const Block& block : problem.layout.blocks()) {
    for (int axis = 0; axis < 3; ++axis) {
      box[axis] = std::max<Index>(box[axis], block.extent[static_cast<std::size_t>(axis)]);
    }
  }
}

Index head_count(const Problem& problem) {
  return problem.batch * problem.heads * static_cast<Index>(problem.layout.sequences().size());
}

Head forward_head(const Problem& problem, const ForwardInputs& in, const ForwardOutputs& out,
                  Index at) {
  const Place p = place(problem, at);
  const bool separate = problem.separate_denominator;
  const auto rows = [&](const TensorView& view) { return rows_of(view, p.batch, p.head); };
  Head head = common_head(problem, in.mixing, p);
  head.q = rows(in.q), head.k = rows(in.k), head.v = rows(in.v), head.o = rows(out.o);
  head.q_den = rows(separate ? in.q_den : in.q), head.k_den = rows(separate ? in.k_den : in.k);
  return head;
}

Head backward_head(const Problem& problem, const BackwardInputs& in, const BackwardOutputs& out,
                   Index at) {
  const Place p = place(problem, at);
  const auto rows = [&](const TensorView& view) { return rows_of(view, p.batch, p.head); };
  Head head = forward_head(
      problem,
      {.q = in.q, .k = in.k, .v = in.v, .mixing = in.mixing, .q_den = in.q_den, .k_den = in.k_den},
      {.o = in.o}, at);
  head.d_o = rows(in.d_o);
  head.d_q = rows(out.d_q), head.d_k = rows(out.d_k), head.d_v = rows(out.d_v);
  head.d_q_den = rows(out.d_q_den), head.d_k_den = rows(out.d_k_den);
  return head;
}

void clear_mixing(const TensorView& d_mixing) {
  if (!d_mixing.defined()) return;
  const bool per_head = d_mixing.rank == 3;
  const std::size_t row_axis = per_head ? 1 : 0;
  for (Index h = 0; h < (per_head ? d_mixing.shape[0] : 1); ++h) {
    for (Index i = 0; i < d_mixing.shape[row_axis]; ++i) {
      float* row = static_cast<float*>(d_mixing.data) + (per_head ? h * d_mixing.strides[0] : 0) +
                   i * d_mixing.strides[row_axis];
      std::fill(row, row + d_mixing.shape[row_axis + 1], 0.0f);
    }
  }
}

void add_shares(const Problem& problem, const BackwardOutputs& out, const float* shares,
                Index first, Index count, Index i) {
  const TensorView& view = out.d_mixing;
  if (!view.defined()) return;
  const Index share = problem.layout.mixing_size() * problem.keys().mixing_size();
  const Index stride = view.strides[static_cast<std::size_t>(view.rank - 2)];
  for (Index at = first; at < first + count; ++at) {
    const Place p = place(problem, at);
    const std::size_t sequence = static_cast<std::size_t>(p.sequence);
    const Index mk = problem.keys().sequences()[sequence].blocks;
    if (i >= problem.layout.sequences()[sequence].blocks) continue;
    const float* from = shares + (at - first) * share + i * mk;
    float* to = static_cast<float*>(view.data) + i * stride +
                (view.rank == 3 ? p.head * view.strides[0] : 0);
    for (Index b = 0; b < mk; ++b) to[b] += from[b];
  }
}

Scratch::Scratch(const Problem& problem, bool backward, Arena& arena) {
  const Geometry g(problem, kWidestLanes);
  const Index widest = std::max(g.dk_padded, g.dv_padded);
  const Index chunk_count = std::max(g.dk_chunks, g.dv_chunks);
  const Index columns = round_up(g.tokens, 2 * kWidestLanes);
  const bool two = backward || g.causal, many = backward && (g.causal || g.shared);
  const bool pairs = problem.dtype == DType::bf16;  // where the machine has dot products of it
  const auto optional = [&](bool wanted, Index count) {
    return wanted ? arena.floats(count) : nullptr;
  };
  a = arena.floats(row_major(g.tokens, chunk_count));
  a2 = optional(two, row_major(g.tokens, chunk_count));
  a3 = optional(many, row_major(g.tokens, chunk_count));
  scores = optional(g.causal, g.tokens * kRowStride);
  scores2 = optional(many, g.tokens * kRowStride);
  scores3 = optional(many && pairs, g.tokens * kRowStride);
  b = arena.floats(g.tokens * widest);
  b2 = optional(two, columns * widest);
  b3 = optional(many, columns * widest);
  result = arena.floats(g.tokens * widest);
  const Flat summary(problem, backward, kWidestLanes);
  const Index longest = problem.layout.max_block_tokens();
  matrix = optional(backward || pairs, problem.dk * g.dv_padded);
  paired = optional(backward && pairs,
                    std::max(problem.dk * g.dv_padded, problem.dv * g.dk_padded) + widest);
  flat = optional(backward ? mixes_late(g) : g.masked, summary.size);
  open = optional(backward && g.causal && longest > kTokens, summary.size);
  row = arena.floats(8 * widest);
  factor = arena.floats(4 * columns);
  at = arena.indices(2 * g.tokens);
  if (pairs) arena.floats(kAmxRows * kRowStride);  // read behind the last rows, never used
}

Slot::Slot(const Problem& problem, bool backward, Arena& arena) {
  const Geometry g(problem, kWidestLanes);
  const Flat flat(problem, backward, kWidestLanes);
  const auto optional = [&](bool wanted, Index count) {
    return wanted ? arena.floats(count) : nullptr;
  };
  summaries = arena.floats(flat.stack(g.mk));
  const bool in_place = backward ? mixes_late(g) : g.masked;
  // Queries that are done before mixing leave the room of S~ to dS.
  const bool reuse = in_place || (!g.causal && !g.shared);
  const Index stride = flat.size + 2 * kWidestLanes;
  mixed = optional(!in_place, stride * (backward && reuse ? std::max(g.mq, g.mk) : g.mq));
  mixing = arena.floats(g.mq * g.mk);
  mixing_pairs = optional(problem.dtype == DType::bf16, g.mq * HalfUp(g.mk));
  d_mixed = optional(backward, flat.stack(g.mq));
  d_summaries = backward && reuse ? mixed : optional(backward, stride * g.mk);
  mixing_t = optional(backward, g.mq * g.mk);
  strands = optional(backward && in_place, kStrands * g.mq * g.mk);
  d_mixing = nullptr;
  sums = optional(backward && g.shared, g.mk * g.dk_padded);
  inverse = optional(backward && !reuse, problem.layout.tokens());
  d_denominator = optional(backward && !reuse, problem.layout.tokens());
}

}  // namespace mhla::cpu
