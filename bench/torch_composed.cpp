// The same computation as ours, composed of LibTorch operations in the obvious ways.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/zeros.h>

#include "torch_peers.h"

namespace mhla::bench {
namespace {

// Between [B, N, H, D] in natural order and [B, H, M, n, D] in block order.
class Blocking {
 public:
  virtual ~Blocking() = default;
  virtual Tensor apply(const Tensor& x) const = 0;
  virtual Tensor undo(const Tensor& x) const = 0;
};

// By views: an axis of blocks and an axis inside the block for each axis of the grid.
class ByPermute final : public Blocking {
 public:
  explicit ByPermute(const BlockLayout& layout) {
    const Sequence& sequence = layout.sequences().front();
    const std::int64_t axes = static_cast<std::int64_t>(sequence.grid.size());
    for (std::int64_t a = 0; a < axes; ++a) {
      const auto i = static_cast<std::size_t>(a);
      const std::int64_t count = sequence.counts[i];
      if (sequence.grid[i] % count != 0) fail("bench", "the composition needs equal blocks");
      split_.push_back(count);
      split_.push_back(sequence.grid[i] / count);
    }
    // [B, g0, p0, g1, p1, ..., H, D] -> [B, H, g0, g1, ..., p0, p1, ..., D]
    order_ = {0, 1 + 2 * axes};
    for (std::int64_t a = 0; a < axes; ++a) order_.push_back(1 + 2 * a);
    for (std::int64_t a = 0; a < axes; ++a) order_.push_back(2 + 2 * a);
    order_.push_back(2 + 2 * axes);
    blocks_ = sequence.blocks;
    back_.resize(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i) {
      back_[static_cast<std::size_t>(order_[i])] = static_cast<std::int64_t>(i);
    }
  }

  Tensor apply(const Tensor& x) const override {
    std::vector<std::int64_t> shape = {x.size(0)};
    shape.insert(shape.end(), split_.begin(), split_.end());
    shape.insert(shape.end(), {x.size(2), x.size(3)});
    const Tensor y = x.view(shape).permute(order_);
    return y.reshape({x.size(0), x.size(2), blocks_, x.size(1) / blocks_, x.size(3)});
  }

  Tensor undo(const Tensor& x) const override {
    std::vector<std::int64_t> shape = {x.size(0), x.size(1)};
    for (std::size_t i = 0; i < split_.size(); i += 2) shape.push_back(split_[i]);
    for (std::size_t i = 1; i < split_.size(); i += 2) shape.push_back(split_[i]);
    shape.push_back(x.size(4));
    const Tensor y = x.reshape(shape).permute(back_);
    return y.reshape({x.size(0), x.size(2) * x.size(3), x.size(1), x.size(4)});
  }

 private:
  std::vector<std::int64_t> split_, order_, back_;
  std::int64_t blocks_ = 0;
};

// By a list of token numbers, as the authors' video code does it.
class ByIndex final : public Blocking {
 public:
  explicit ByIndex(const BlockLayout& layout)
      : blocks_(static_cast<std::int64_t>(layout.blocks().size())) {
    std::vector<std::int64_t> order, back(static_cast<std::size_t>(layout.tokens()));
    for (const Block& block : layout.blocks()) {
      for (std::int64_t w = 0; w < block.tokens(); ++w) {
        back[static_cast<std::size_t>(block.token(w))] = static_cast<std::int64_t>(order.size());
        order.push_back(block.token(w));
      }
    }
    order_ = at::tensor(order, at::kLong);
    back_ = at::tensor(back, at::kLong);
  }

  Tensor apply(const Tensor& x) const override {
    const Tensor y = x.index_select(1, order_);
    return y.view({x.size(0), blocks_, x.size(1) / blocks_, x.size(2), x.size(3)})
        .permute({0, 3, 1, 2, 4});
  }

  Tensor undo(const Tensor& x) const override {
    const Tensor y = x.permute({0, 2, 3, 1, 4});
    return y.reshape({x.size(0), x.size(2) * x.size(3), x.size(1), x.size(4)})
        .index_select(1, back_);
  }

 private:
  std::int64_t blocks_;
  Tensor order_, back_;
};

// The products, either as batched matmuls or as einsum. s: [B, H, M, dk, dv].
struct Products {
  std::function<Tensor(const Tensor& k, const Tensor& v)> summaries;  // k^T v
  std::function<Tensor(const Tensor& m, const Tensor& s)> mix;        // m s over blocks
  std::function<Tensor(const Tensor& q, const Tensor& s)> read;       // q s
  std::function<Tensor(const Tensor& q, const Tensor& k)> scores;     // q k^T
};

Products by_matmul() {
  return {.summaries = [](const Tensor& k,
                          const Tensor& v) { return at::matmul(k.transpose(-1, -2), v); },
          .mix = [](const Tensor& m,
                    const Tensor& s) { return at::matmul(m, s.flatten(3)).view_as(s); },
          .read = [](const Tensor& q, const Tensor& s) { return at::matmul(q, s); },
          .scores = [](const Tensor& q,
                       const Tensor& k) { return at::matmul(q, k.transpose(-1, -2)); }};
}

Products by_einsum() {
  return {
      .summaries = [](const Tensor& k,
                      const Tensor& v) { return at::einsum("bhmnk,bhmnv->bhmkv", {k, v}); },
      .mix = [](const Tensor& m, const Tensor& s) { return at::einsum("ij,bhjkv->bhikv", {m, s}); },
      .read = [](const Tensor& q,
                 const Tensor& s) { return at::einsum("bhmnk,bhmkv->bhmnv", {q, s}); },
      .scores = [](const Tensor& q,
                   const Tensor& k) { return at::einsum("bhmsk,bhmtk->bhmst", {q, k}); }};
}

// Spec 1.2: summaries, mixing, read-out, and the denominator of the paper.
Tensor bidirectional(const Problem& problem, const Blocking& blocking, const Products& products,
                     const Operands& in) {
  const Tensor q = phi(blocking.apply(in.q), problem.feature_map);
  const Tensor k = phi(blocking.apply(in.k), problem.feature_map);
  const Tensor v = blocking.apply(in.v);
  const Tensor m = in.mixing.to(v.scalar_type());
  const Tensor num = products.read(q, products.mix(m, products.summaries(k, v)));
  if (problem.normalizer == Normalizer::none) return blocking.undo(num * problem.scale);
  const Tensor z = products.mix(m, k.sum(-2).unsqueeze(-1));  // [B, H, M, dk, 1]
  return blocking.undo(num / products.read(q, z));
}

// Spec 1.7: earlier blocks through their summaries, the own block through a triangle of scores.
Tensor causal(const Problem& problem, const Blocking& blocking, const Products& products,
              const Operands& in) {
  const Tensor q = phi(blocking.apply(in.q), problem.feature_map) * problem.scale;
  const Tensor k = phi(blocking.apply(in.k), problem.feature_map);
  const Tensor v = blocking.apply(in.v);
  const Tensor m = in.mixing.to(v.scalar_type());
  const Tensor before = products.mix(m.tril(-1), products.summaries(k, v));
  const Tensor own = m.diagonal().view({-1, 1, 1});
  const Tensor inside = products.scores(q, k).tril() * own;
  return blocking.undo(products.read(q, before) + products.read(inside, v));
}

}  // namespace

std::vector<Peer> composed_peers(const PeerCase& peer_case) {
  const Problem& problem = peer_case.problem;
  const double flops = plan(problem).cost().forward_flops;
  const auto add = [&](const char* way, const std::shared_ptr<const Blocking>& blocking,
                       const Products& products) {
    return make_peer(
        peer_case, "composed", way, flops, [problem, blocking, products](const Operands& in) {
          return problem.mask == Mask::none ? bidirectional(problem, *blocking, products, in)
                                            : causal(problem, *blocking, products, in);
        });
  };
  const auto permute = std::make_shared<ByPermute>(problem.layout);
  std::vector<Peer> peers = {add("matmul on permuted blocks", permute, by_matmul()),
                             add("einsum on permuted blocks", permute, by_einsum())};
  // In one dimension nothing is permuted.
  if (problem.layout.axes() > 1) {
    const auto index = std::make_shared<ByIndex>(problem.layout);
    peers.push_back(add("matmul after index_select", index, by_matmul()));
  }
  return peers;
}

// Inside a block: one outer product into the open summary, one read-out of prefix and open summary.
// Summaries are f32 in every dtype, as ours are.
std::vector<Peer> composed_decode(const Problem& problem) {
  const std::int64_t lanes = problem.batch * problem.heads;
  const at::ScalarType type = scalar_type(problem.dtype);
  const Tensor q = at::randn({lanes, 1, problem.dk}, type);
  const Tensor k = at::randn({lanes, problem.dk, 1}, type);
  const Tensor v = at::randn({lanes, 1, problem.dv}, type);
  const Tensor prefix = at::randn({lanes, problem.dk, problem.dv});
  const Tensor open = at::zeros({lanes, problem.dk, problem.dv});
  const double scale = problem.scale, own = 1.0 / 32;
  const FeatureMap map = problem.feature_map;
  return {
      {.family = "composed",
       .way = "baddbmm",
       .flops = 0,
       .forward =
           [=] {
             const at::NoGradGuard no_grad;
             open.baddbmm_(phi(k, map).to(at::kFloat), v.to(at::kFloat));
             const Tensor features = phi(q, map).to(at::kFloat) * scale;
             at::baddbmm(at::matmul(features, prefix), features, open, 1, own).to(v.scalar_type());
           },
       .forward_backward = {},
       .evaluate = {}}};
}

}  // namespace mhla::bench
