// Running the streaming form on a case: the same tokens in pieces and steps.
#include <algorithm>

#include "mhla/verify/random.h"
#include "mhla/verify/slab.h"
#include "mhla/verify/trial.h"

namespace mhla::verify {
namespace {

// Tokens [from, from + count) of a [B, N, H, D] view.
TensorView piece(TensorView view, std::int64_t from, std::int64_t count) {
  if (!view.defined()) return view;
  const auto offset = static_cast<std::size_t>(from * view.strides[1]) * size_of(view.dtype);
  view.data = static_cast<std::byte*>(view.data) + offset;
  view.shape[1] = count;
  return view;
}

MixingMatrix mixing_of(const Case& c, const DenseInputs& in) {
  const std::vector<float> weights(in.mixing.begin(), in.mixing.end());
  return MixingMatrix::from(weights.data(), c.problem.mixing_per_head ? c.problem.heads : 0,
                            in.mixing_rows, in.mixing_cols);
}

struct Tensors {
  State::Inputs inputs;
  TensorView o;
};

// Pieces of random length, single tokens by `step`; half way a fork takes over.
void stream(const Case& c, const DenseInputs& in, const Tensors& all) {
  const std::int64_t tokens = c.problem.layout.tokens();
  State state(c.problem, mixing_of(c, in));
  Random random(c.seed ^ 0x57a7e);
  const std::int64_t unit = c.problem.mask == Mask::block_causal ? state.block_size() : 1;
  for (std::int64_t at = 0; at < tokens;) {
    const auto wanted = static_cast<std::int64_t>(random.below(6)) * unit;  // 0: an empty piece
    const std::int64_t count = std::min(wanted, tokens - at);
    const State::Inputs inputs{.q = piece(all.inputs.q, at, count),
                               .k = piece(all.inputs.k, at, count),
                               .v = piece(all.inputs.v, at, count),
                               .q_den = piece(all.inputs.q_den, at, count),
                               .k_den = piece(all.inputs.k_den, at, count)};
    if (count == 1 && unit == 1) {
      state.step(inputs, piece(all.o, at, count));
    } else {
      state.prefill(inputs, piece(all.o, at, count));
    }
    if (at < tokens / 2 && at + count >= tokens / 2) state = state.fork();
    at += count;
  }
  if (state.tokens() != tokens) fail(ErrorCode::internal, "verify", "the state lost count");
}

}  // namespace

std::optional<std::string> refuses_streaming(const Case& c) {
  const Problem& p = c.problem;
  if (p.mask == Mask::none) return "not causal";
  if (p.layout.axes() != 1 || p.layout.cut().block.empty()) return "not a sequence of equal blocks";
  if (p.layout.sequences().size() != 1 || p.layout_k) return "more than one sequence";
  if (p.mask == Mask::block_causal && p.layout.tokens() % p.layout.cut().block[0] != 0) {
    return "block_causal takes whole blocks";
  }
  if (c.mixing_dtype != DType::f32) return "a state's mixing matrix is f32";
  return std::nullopt;
}

Outcome try_streaming(const Case& c, const Truth& truth) {
  const Problem& p = c.problem;
  const DenseInputs& in = truth.inputs;
  const std::int64_t n = p.layout.tokens();
  const auto make = [&](std::int64_t width, const std::vector<double>* values) {
    Slab slab(host_memory(), p.dtype,
              Slab::Rows{.batch = p.batch,
                         .tokens = n,
                         .heads = p.heads,
                         .widths = {width},
                         .gap = std::max<std::int64_t>(c.gap, 0)});
    if (values) slab.write(0, *values);
    slab.upload();
    return slab;
  };
  const Slab q = make(p.dk, &in.q), k = make(p.dk, &in.k), v = make(p.dv, &in.v);
  Slab o = make(p.dv, nullptr);
  Tensors tensors{.inputs = {.q = q.view(0), .k = k.view(0), .v = v.view(0)}, .o = o.view(0)};
  std::vector<Slab> denominators;
  if (p.separate_denominator) {
    denominators.push_back(make(p.dk, &in.q_den));
    denominators.push_back(make(p.dk, &in.k_den));
    tensors.inputs.q_den = denominators[0].view(0);
    tensors.inputs.k_den = denominators[1].view(0);
  }
  stream(c, in, tensors);
  o.download();

  Outcome outcome{.worst = compare(o.read(0), {.value = truth.answer.value.o,
                                               .mass = truth.answer.mass.o,
                                               .naive = truth.naive ? &truth.naive->o : nullptr,
                                               .dtype = p.dtype,
                                               .stored = p.dtype}),
                  .tensor = "o",
                  .wrong = {}};
  if (!(outcome.worst.ratio <= 1)) outcome.wrong.push_back("o is off");
  if (!o.gaps_are_untouched()) outcome.wrong.push_back("something outside o was written");
  return outcome;
}

}  // namespace mhla::verify
