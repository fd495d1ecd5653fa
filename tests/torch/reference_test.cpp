// The reference against LibTorch: a dense operator differentiated by autograd, all in f64.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include "mhla/mhla.h"

namespace {

using at::Tensor;
using mhla::BlockLayout;
using mhla::FeatureMap;
using mhla::Mask;
using mhla::Normalizer;
using mhla::Problem;

// Where every token of a layout is, as integer tensors [N].
struct Places {
  Tensor sequence, block, position, coordinates;
};

Places places(const BlockLayout& layout) {
  std::vector<std::int64_t> sequence, block, position, coordinates;
  for (std::int64_t t = 0; t < layout.tokens(); ++t) {
    const mhla::BlockPosition place = layout.locate(t);
    const mhla::Block& b = layout.blocks()[static_cast<std::size_t>(place.block)];
    const std::int64_t x = place.position % b.extent[2];
    const std::int64_t y = place.position / b.extent[2] % b.extent[1];
    const std::int64_t a = place.position / (b.extent[2] * b.extent[1]);
    sequence.push_back(b.sequence);
    block.push_back(b.index);
    position.push_back(place.position);
    coordinates.push_back((a * 1000 + y) * 1000 + x);  // one number per place; axes are < 1000
  }
  const auto make = [](const std::vector<std::int64_t>& v) { return at::tensor(v, at::kLong); };
  return {make(sequence), make(block), make(position), make(coordinates)};
}

template <typename Compare>
Tensor pairs(const Tensor& rows, const Tensor& cols, Compare compare) {  // [Nq, Nk], boolean
  return compare(rows.unsqueeze(1), cols.unsqueeze(0));
}
const auto kEqual = [](const Tensor& a, const Tensor& b) { return at::eq(a, b); };
const auto kLater = [](const Tensor& a, const Tensor& b) { return at::gt(a, b); };
const auto kNotEarlier = [](const Tensor& a, const Tensor& b) { return at::ge(a, b); };

Tensor phi(const Tensor& x, FeatureMap map) {
  switch (map) {
    case FeatureMap::relu_eps: return at::relu(x) + mhla::kReluEps;
    case FeatureMap::relu: return at::relu(x);
    case FeatureMap::elu1: return at::elu(x) + 1;
    case FeatureMap::identity: return x;
  }
  throw std::logic_error("unknown feature map");
}

struct Inputs {
  Tensor q, k, v, mixing, q_den, k_den;  // the last two only with separate_denominator
};

// phi(q) . phi(k) for all pairs: [B, H, Nq, Nk]
Tensor products(const Tensor& q, const Tensor& k, FeatureMap map) {
  return at::einsum("bshd,bthd->bhst", {phi(q, map), phi(k, map)});
}

// A_st = m[b(s), b(t)] * scale * (phi(q_s) . phi(k_t)) where t is visible from s, and its row sums.
Tensor dense(const Problem& p, const Inputs& in) {
  const Places pq = places(p.layout), pk = places(p.keys());
  const Tensor same_block = pairs(pq.block, pk.block, kEqual);
  const Tensor later_block = pairs(pq.block, pk.block, kLater);
  const Tensor not_earlier = pairs(pq.position, pk.position, kNotEarlier);
  Tensor visible = pairs(pq.sequence, pk.sequence, kEqual);
  if (p.mask == Mask::causal) visible = visible & (later_block | (same_block & not_earlier));
  if (p.mask == Mask::block_causal) visible = visible & (later_block | same_block);

  // [H or 1, Nq, Nk], broadcast over the batch
  const Tensor m = p.mixing_per_head ? in.mixing : in.mixing.unsqueeze(0);
  const Tensor weights = m.index_select(1, pq.block).index_select(2, pk.block) * p.scale;
  const Tensor seen = weights * visible;
  const Tensor scores = seen * products(in.q, in.k, p.feature_map);
  const Tensor numerator = at::einsum("bhst,bthd->bshd", {scores, in.v});
  if (p.normalizer == Normalizer::none) return numerator;

  const Tensor own = products(p.separate_denominator ? in.q_den : in.q,
                              p.separate_denominator ? in.k_den : in.k, p.feature_map);
  Tensor denominator;  // [B, H, Nq]
  if (p.normalizer == Normalizer::exact) {
    denominator = (seen * own).sum(-1);
  } else {
    // Each block's own query at the same coordinates meets that block's own summary.
    const Tensor inside = pairs(pq.sequence, pk.sequence, kEqual) & same_block;
    const Tensor whole = (own * inside).sum(-1, true);                  // r_(b,w): [B, H, N, 1]
    const Tensor until = (own * (inside & not_earlier)).sum(-1, true);  // positions <= w only
    const Tensor paired = seen * pairs(pq.coordinates, pk.coordinates, kEqual);
    const Tensor before = at::matmul(paired * ~same_block, whole);
    const Tensor within = at::matmul(paired * same_block, p.mask == Mask::causal ? until : whole);
    denominator = (before + within).squeeze(-1);
  }
  denominator = (denominator + p.denominator_eps()).transpose(1, 2).unsqueeze(-1);
  const Tensor empty = denominator == 0;
  return at::where(empty, at::zeros_like(numerator),
                   numerator / at::where(empty, at::ones_like(denominator), denominator));
}

mhla::TensorView view(const Tensor& t) {
  mhla::TensorView v;
  if (!t.defined()) return v;
  v.data = t.data_ptr();
  v.dtype = mhla::DType::f64;
  v.rank = static_cast<int>(t.dim());
  for (std::size_t i = 0; i < t.sizes().size(); ++i) {
    v.shape[i] = t.sizes()[i];
    v.strides[i] = t.strides()[i];
  }
  return v;
}

Tensor uniform(std::initializer_list<std::int64_t> shape, double low) {
  return at::empty(shape, at::kDouble).uniform_(low, 1.0).requires_grad_();
}

// Both signs, but channel 0 positive (all channels for the identity map): no denominator comes near
// zero, where rounding errors would be as large as the result.
Tensor features(std::initializer_list<std::int64_t> shape, FeatureMap map) {
  Tensor x = at::empty(shape, at::kDouble).uniform_(-1.0, 1.0);
  Tensor positive = map == FeatureMap::identity ? x : x.select(-1, 0);
  positive.abs_().add_(0.1);
  return x.requires_grad_();
}

Inputs random_inputs(const Problem& p) {
  const std::int64_t nq = p.layout.tokens(), nk = p.keys().tokens();
  const std::int64_t mq = p.layout.mixing_size(), mk = p.keys().mixing_size();
  Inputs in{.q = features({p.batch, nq, p.heads, p.dk}, p.feature_map),
            .k = features({p.batch, nk, p.heads, p.dk}, p.feature_map),
            .v = uniform({p.batch, nk, p.heads, p.dv}, -1.0),
            .mixing = p.mixing_per_head ? uniform({p.heads, mq, mk}, 0.1) : uniform({mq, mk}, 0.1),
            .q_den = {},
            .k_den = {}};
  if (p.separate_denominator) {
    in.q_den = features({p.batch, nq, p.heads, p.dk}, p.feature_map);
    in.k_den = features({p.batch, nk, p.heads, p.dk}, p.feature_map);
  }
  return in;
}

// Rounding of a few hundred additions, relative to the largest value: thousands of ulps are a bug.
void expect_same(const char* what, const Tensor& got, const Tensor& expected) {
  ASSERT_TRUE(expected.defined()) << what;
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  const double size = expected.abs().max().item<double>();
  const double error = (got - expected).abs().max().item<double>();
  EXPECT_LE(error, 1e-12 * std::max(size, 1.0)) << what << ", largest value " << size;
}

void compare(const Problem& p, const Inputs& in) {
  SCOPED_TRACE(p.to_string());
  const Tensor expected = dense(p, in);
  const Tensor d_o = at::empty_like(expected).uniform_(-1.0, 1.0);
  expected.backward(d_o);

  const mhla::Plan plan = mhla::plan(p, {.implementation = "reference"});
  const auto poisoned = [](const Tensor& like) {
    return like.defined() ? at::full_like(like, NAN).detach() : Tensor();
  };
  const Tensor o = poisoned(expected.detach());
  mhla::forward(plan,
                {.q = view(in.q),
                 .k = view(in.k),
                 .v = view(in.v),
                 .mixing = view(in.mixing),
                 .q_den = view(in.q_den),
                 .k_den = view(in.k_den)},
                {.o = view(o)});
  expect_same("o", o, expected.detach());

  const Inputs d{.q = poisoned(in.q),
                 .k = poisoned(in.k),
                 .v = poisoned(in.v),
                 .mixing = poisoned(in.mixing),
                 .q_den = poisoned(in.q_den),
                 .k_den = poisoned(in.k_den)};
  mhla::backward(plan,
                 {.q = view(in.q),
                  .k = view(in.k),
                  .v = view(in.v),
                  .mixing = view(in.mixing),
                  .o = view(o),
                  .d_o = view(d_o),
                  .q_den = view(in.q_den),
                  .k_den = view(in.k_den)},
                 {.d_q = view(d.q),
                  .d_k = view(d.k),
                  .d_v = view(d.v),
                  .d_mixing = view(d.mixing),
                  .d_q_den = view(d.q_den),
                  .d_k_den = view(d.k_den)});
  expect_same("d_q", d.q, in.q.grad());
  expect_same("d_k", d.k, in.k.grad());
  expect_same("d_v", d.v, in.v.grad());
  expect_same("d_mixing", d.mixing, in.mixing.grad());
  if (p.separate_denominator) {
    expect_same("d_q_den", d.q_den, in.q_den.grad());
    expect_same("d_k_den", d.k_den, in.k_den.grad());
  }
}

void compare(const Problem& p) { compare(p, random_inputs(p)); }

constexpr Mask kMasks[] = {Mask::none, Mask::causal, Mask::block_causal};
constexpr Normalizer kNormalizers[] = {Normalizer::exact, Normalizer::shared_position,
                                       Normalizer::none};
constexpr FeatureMap kMaps[] = {FeatureMap::relu_eps, FeatureMap::relu, FeatureMap::elu1,
                                FeatureMap::identity};

Problem problem(const BlockLayout& layout) {
  return {.batch = 2,
          .heads = 2,
          .dk = 3,
          .dv = 5,
          .layout = layout,
          .scale = 0.7,
          .dtype = mhla::DType::f64};
}

void compare_all_forms(const BlockLayout& layout) {
  at::manual_seed(1);
  Problem p = problem(layout);
  for (const Mask mask : kMasks) {
    for (const Normalizer normalizer : kNormalizers) {
      for (const FeatureMap map : kMaps) {
        for (const bool separate : {false, true}) {
          if (separate && normalizer == Normalizer::none) continue;
          p.mask = mask, p.normalizer = normalizer, p.feature_map = map;
          p.separate_denominator = separate, p.mixing_per_head = separate;
          compare(p);
        }
      }
    }
  }
}

TEST(ReferenceAgainstLibTorch, AgreesOnASequence) {
  compare_all_forms(BlockLayout::sequence(13, {.block = {4}}));
}

TEST(ReferenceAgainstLibTorch, AgreesOnARaggedGrid) {
  compare_all_forms(BlockLayout::grid({5, 7}, {.block = {2, 3}}));
}

TEST(ReferenceAgainstLibTorch, AgreesOnAVideo) {
  compare_all_forms(BlockLayout::grid({3, 4, 5}, {.blocks = {2, 2, 2}}));
}

TEST(ReferenceAgainstLibTorch, AgreesOnPackedSequences) {
  at::manual_seed(2);
  Problem p = problem(BlockLayout::packed({0, 6, 7, 16}, {.block = {4}}));
  p.batch = 1;
  for (const Mask mask : kMasks) {
    for (const Normalizer normalizer : kNormalizers) {
      p.mask = mask, p.normalizer = normalizer;
      compare(p);
    }
  }
}

TEST(ReferenceAgainstLibTorch, AgreesAcrossLayouts) {
  at::manual_seed(3);
  Problem p = problem(BlockLayout::grid({5, 4}, {.block = {2, 2}}));
  p.layout_k = BlockLayout::sequence(11, {.blocks = {3}});
  for (const FeatureMap map : kMaps) {
    for (const Normalizer normalizer : {Normalizer::exact, Normalizer::none}) {
      p.feature_map = map, p.normalizer = normalizer;
      compare(p);
    }
  }
}

TEST(ReferenceAgainstLibTorch, AgreesWhereTheDenominatorIsZero) {
  at::manual_seed(4);
  Problem p = problem(BlockLayout::sequence(13, {.block = {4}}));
  p.feature_map = FeatureMap::relu;
  for (const Mask mask : kMasks) {
    p.mask = mask;
    Inputs in = random_inputs(p);
    in.q.detach().select(1, 5).fill_(-1.0);  // relu leaves nothing of these queries
    compare(p, in);
  }
}

}  // namespace
