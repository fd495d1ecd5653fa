// Forward and backward of the dense formula, one (batch, head, sequence) at a time.
#include "mhla/verify/dense_oracle.h"

#include <map>

#include "mhla/error.h"
#include "mhla/verify/arithmetic.h"

namespace mhla::verify {
namespace {

double phi(FeatureMap map, double x) {
  switch (map) {
    case FeatureMap::relu_eps: return (x > 0 ? x : 0) + kReluEps;
    case FeatureMap::relu: return x > 0 ? x : 0;
    case FeatureMap::elu1: return x > 0 ? x + 1 : std::exp(x);
    case FeatureMap::identity: return x;
  }
  fail(ErrorCode::internal, "verify", "unknown feature map");
}

double phi_slope(FeatureMap map, double x) {
  switch (map) {
    case FeatureMap::relu_eps:
    case FeatureMap::relu: return x > 0 ? 1 : 0;
    case FeatureMap::elu1: return x > 0 ? 1 : std::exp(x);
    case FeatureMap::identity: return 1;
  }
  fail(ErrorCode::internal, "verify", "unknown feature map");
}

// Roundings that a computed feature suffers: none when it is a copy, one for the addition of a
// constant (two when the constant is rounded too), a few for an exponential.
double phi_roundings(FeatureMap map) {
  if (map == FeatureMap::elu1) return 4;
  return map == FeatureMap::relu_eps ? 2 : 0;
}

bool allowed(Mask mask, const TokenPlace& query, const TokenPlace& key) {
  if (mask == Mask::none || key.block < query.block) return true;
  if (key.block > query.block) return false;
  return mask == Mask::block_causal || key.position <= query.position;
}

template <typename Number>
using Tensor = std::vector<Number>;  // row-major

template <typename Number>
struct Gradients {
  Tensor<Sum<Number>> q, k, v, q_den, k_den, mixing;
};

// One sequence of one head, copied out of the batch, mapped through phi where it applies.
template <typename Number>
struct Features {
  Tensor<Number> q, k, v, q_den, k_den;
};

template <typename Number>
struct Oracle {
  const Problem& problem;
  const DenseInputs& in;
  std::vector<std::vector<TokenPlace>> queries, keys;
  Tensor<Number> o;
  Gradients<Number> gradient;

  Oracle(const Problem& p, const DenseInputs& inputs)
      : problem(p), in(inputs), queries(token_places(p.layout)), keys(token_places(p.keys())) {
    o.resize(static_cast<std::size_t>(p.batch * p.layout.tokens() * p.heads * p.dv));
    if (in.d_o.empty()) return;
    gradient.q.resize(in.q.size());
    gradient.k.resize(in.k.size());
    gradient.v.resize(in.v.size());
    gradient.mixing.resize(in.mixing.size());
    gradient.q_den.resize(in.q_den.size());
    gradient.k_den.resize(in.k_den.size());
  }

  void run() {
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      for (std::int64_t h = 0; h < problem.heads; ++h) {
        std::int64_t first_q = 0, first_k = 0;
        for (std::size_t s = 0; s < queries.size(); ++s) {
          run_one({b, h, first_q, first_k, queries[s], keys[s]});
          first_q += static_cast<std::int64_t>(queries[s].size());
          first_k += static_cast<std::int64_t>(keys[s].size());
        }
      }
    }
  }

  struct Part {
    std::int64_t batch, head, first_q, first_k;  // first tokens of the sequence in the batch
    const std::vector<TokenPlace>&query, &key;
  };

  std::size_t row(const Part& part, std::int64_t first, std::int64_t tokens, std::size_t token,
                  std::int64_t width) const {  // offset of [batch, token, head, 0]
    const std::int64_t n = part.batch * tokens + first + static_cast<std::int64_t>(token);
    return static_cast<std::size_t>((n * problem.heads + part.head) * width);
  }
  std::size_t query_row(const Part& part, std::size_t token, std::int64_t width) const {
    return row(part, part.first_q, problem.layout.tokens(), token, width);
  }
  std::size_t key_row(const Part& part, std::size_t token, std::int64_t width) const {
    return row(part, part.first_k, problem.keys().tokens(), token, width);
  }
  std::size_t mixing_at(const Part& part, std::size_t s, std::size_t t) const {
    const std::int64_t head = problem.mixing_per_head ? part.head : 0;
    const std::int64_t r = head * in.mixing_rows + part.query[s].block;
    return static_cast<std::size_t>(r * in.mixing_cols + part.key[t].block);
  }

  Number feature(double x) const {
    return stored(
        Number::computed(phi(problem.feature_map, x), phi_roundings(problem.feature_map)));
  }

  Features<Number> features(const Part& part) const {
    Features<Number> f;
    const auto copy = [&](const std::vector<double>& from, std::size_t at, Tensor<Number>& to) {
      for (std::int64_t d = 0; d < problem.dk; ++d) to.push_back(feature(from[at + d]));
    };
    const bool separate = problem.separate_denominator;
    for (std::size_t s = 0; s < part.query.size(); ++s) {
      const std::size_t at = query_row(part, s, problem.dk);
      copy(in.q, at, f.q);
      copy(separate ? in.q_den : in.q, at, f.q_den);
    }
    for (std::size_t t = 0; t < part.key.size(); ++t) {
      const std::size_t at = key_row(part, t, problem.dk), at_v = key_row(part, t, problem.dv);
      copy(in.k, at, f.k);
      copy(separate ? in.k_den : in.k, at, f.k_den);
      for (std::int64_t d = 0; d < problem.dv; ++d) f.v.push_back(Number::input(in.v[at_v + d]));
    }
    return f;
  }

  Number dot(const Tensor<Number>& a, std::size_t row_a, const Tensor<Number>& b, std::size_t row_b,
             std::int64_t width) const {
    Sum<Number> sum;
    for (std::int64_t d = 0; d < width; ++d) sum.add(a[row_a * width + d] * b[row_b * width + d]);
    return sum.result();
  }

  Number weight(const Part& part, std::size_t s, std::size_t t) const {
    return Number::input(in.mixing[mixing_at(part, s, t)]) * Number::computed(problem.scale, 1);
  }

  // Whose q the denominator of s pairs with key t: its own (exact), or that of the token at the
  // same coordinates of t's block (shared_position). -1 where that block has no such token.
  std::vector<std::int64_t> partners(const Part& part) const {
    const std::size_t nq = part.query.size(), nk = part.key.size();
    std::vector<std::int64_t> result(nq * nk);
    std::map<std::pair<std::int64_t, std::array<std::int64_t, 3>>, std::int64_t> at;
    for (std::size_t s = 0; s < nq; ++s) {
      at[{part.query[s].block, part.query[s].coordinate}] = static_cast<std::int64_t>(s);
    }
    for (std::size_t s = 0; s < nq; ++s) {
      for (std::size_t t = 0; t < nk; ++t) {
        if (problem.normalizer == Normalizer::exact) {
          result[s * nk + t] = static_cast<std::int64_t>(s);
        } else {
          const auto found = at.find({part.key[t].block, part.query[s].coordinate});
          result[s * nk + t] = found == at.end() ? -1 : found->second;
        }
      }
    }
    return result;
  }

  void run_one(const Part& part) {
    const std::size_t nq = part.query.size(), nk = part.key.size();
    const auto dv = static_cast<std::size_t>(problem.dv);
    const Features<Number> f = features(part);
    const bool normalized = problem.normalizer != Normalizer::none;
    const std::vector<std::int64_t> partner = normalized ? partners(part)
                                                         : std::vector<std::int64_t>();
    const Number eps = Number::computed(problem.denominator_eps(), 1);

    for (std::size_t s = 0; s < nq; ++s) {
      Tensor<Sum<Number>> numerator(dv);
      Tensor<Number> plain(nk), plain_den(nk);  // phi(q) . phi(k), before mixing
      Sum<Number> denominator;
      for (std::size_t t = 0; t < nk; ++t) {
        if (!allowed(problem.mask, part.query[s], part.key[t])) continue;
        plain[t] = stored(dot(f.q, s, f.k, t, problem.dk));
        const Number score = stored(weight(part, s, t) * plain[t]);
        for (std::size_t d = 0; d < dv; ++d) numerator[d].add(score * f.v[t * dv + d]);
        if (!normalized || partner[s * nk + t] < 0) continue;
        const auto own = static_cast<std::size_t>(partner[s * nk + t]);
        plain_den[t] = stored(dot(f.q_den, own, f.k_den, t, problem.dk));
        denominator.add(stored(weight(part, s, t) * plain_den[t]));
      }
      Number divisor = Number::input(1);
      if (normalized) {
        Sum<Number> with_eps = denominator;
        if (problem.denominator_eps() != 0) with_eps.add(eps);
        divisor = stored(with_eps.result());
      }
      const bool zero = normalized && divisor.number() == 0;
      const std::size_t out = query_row(part, s, problem.dv);
      for (std::size_t d = 0; d < dv && !zero; ++d) {
        const Number sum = stored(numerator[d].result());
        o[out + d] = normalized ? stored(sum / divisor) : sum;
      }
      if (!in.d_o.empty() && !zero) {
        backward_row(part, f, {s, divisor, plain, plain_den, partner});
      }
    }
  }

  struct Row {
    std::size_t s;
    Number divisor;
    const Tensor<Number>&plain, &plain_den;
    const std::vector<std::int64_t>& partner;
  };

  // d(num / den) = d_num / den - num d_den / den^2, then through every score of the row.
  void backward_row(const Part& part, const Features<Number>& f, const Row& r) {
    const std::size_t nk = part.key.size();
    const auto dv = static_cast<std::size_t>(problem.dv);
    const bool normalized = problem.normalizer != Normalizer::none;
    const std::size_t out = query_row(part, r.s, problem.dv);
    Tensor<Number> d_num(dv);
    Sum<Number> along;  // <d_o, o>
    for (std::size_t d = 0; d < dv; ++d) {
      const Number given = Number::input(in.d_o[out + d]);
      d_num[d] = normalized ? stored(given / r.divisor) : given;
      along.add(given * o[out + d]);
    }
    const Number d_den = normalized ? stored(-(along.result() / r.divisor)) : Number{};

    for (std::size_t t = 0; t < nk; ++t) {
      if (!allowed(problem.mask, part.query[r.s], part.key[t])) continue;
      const Number score = stored(weight(part, r.s, t) * r.plain[t]);
      const std::size_t key = key_row(part, t, problem.dv);
      for (std::size_t d = 0; d < dv; ++d) gradient.v[key + d].add(score * d_num[d]);
      const Number d_score = stored(dot(d_num, 0, f.v, t, problem.dv));
      backward_score(part, {r.s, t, r.plain[t], d_score}, f.q, f.k, gradient.q, gradient.k);
      if (!normalized || r.partner[r.s * nk + t] < 0) continue;
      const bool separate = problem.separate_denominator;
      const auto own = static_cast<std::size_t>(r.partner[r.s * nk + t]);
      backward_score(part, {r.s, t, r.plain_den[t], d_den, own}, f.q_den, f.k_den,
                     separate ? gradient.q_den : gradient.q,
                     separate ? gradient.k_den : gradient.k);
    }
  }

  struct Score {
    std::size_t s, t;
    Number plain, d_score;
    std::size_t query = static_cast<std::size_t>(-1);  // whose q it was made of; default s
  };

  // score = m * scale * (phi_q . phi_k): gradients of m, phi_q and phi_k.
  void backward_score(const Part& part, const Score& score, const Tensor<Number>& q,
                      const Tensor<Number>& k, Tensor<Sum<Number>>& d_q, Tensor<Sum<Number>>& d_k) {
    const auto dk = static_cast<std::size_t>(problem.dk);
    const std::size_t own = score.query == static_cast<std::size_t>(-1) ? score.s : score.query;
    const Number scale = Number::computed(problem.scale, 1);
    gradient.mixing[mixing_at(part, score.s, score.t)].add(scale * score.plain * score.d_score);
    const Number d_plain = stored(weight(part, score.s, score.t) * score.d_score);
    const std::size_t at_q = query_row(part, own, problem.dk);
    const std::size_t at_k = key_row(part, score.t, problem.dk);
    for (std::size_t d = 0; d < dk; ++d) {
      d_q[at_q + d].add(d_plain * k[score.t * dk + d]);
      d_k[at_k + d].add(d_plain * q[own * dk + d]);
    }
  }

  Tensor<Number> through_phi(const Tensor<Sum<Number>>& d_features,
                             const std::vector<double>& x) const {
    Tensor<Number> result;
    const double roundings = problem.feature_map == FeatureMap::elu1 ? 4 : 0;
    for (std::size_t i = 0; i < d_features.size(); ++i) {
      const Number slope = Number::computed(phi_slope(problem.feature_map, x[i]), roundings);
      result.push_back(stored(stored(d_features[i].result()) * slope));
    }
    return result;
  }

  static Tensor<Number> totals(const Tensor<Sum<Number>>& sums, bool store_low) {
    Tensor<Number> result;
    for (const Sum<Number>& sum : sums) {
      result.push_back(store_low ? stored(sum.result()) : sum.result());
    }
    return result;
  }

  // Hands each result to take(which, numbers).
  template <typename Take>
  void results(Take take) const {
    take(&DenseTensors::o, o);
    take(&DenseTensors::d_q, through_phi(gradient.q, in.q));
    take(&DenseTensors::d_k, through_phi(gradient.k, in.k));
    take(&DenseTensors::d_v, totals(gradient.v, true));
    take(&DenseTensors::d_mixing, totals(gradient.mixing, false));  // f32 in every dtype
    take(&DenseTensors::d_q_den, through_phi(gradient.q_den, in.q_den));
    take(&DenseTensors::d_k_den, through_phi(gradient.k_den, in.k_den));
  }
};

template <DType dtype>
DenseTensors naive(const Problem& problem, const DenseInputs& inputs) {
  Oracle<Low<dtype>> oracle(problem, inputs);
  oracle.run();
  DenseTensors answer;
  oracle.results([&](std::vector<double> DenseTensors::* which, const auto& numbers) {
    for (const Low<dtype>& x : numbers) (answer.*which).push_back(x.value);
  });
  return answer;
}

}  // namespace

DenseAnswer dense_oracle(const Problem& problem, const DenseInputs& inputs) {
  Oracle<Tracked> oracle(problem, inputs);
  oracle.run();
  DenseAnswer answer;
  oracle.results([&](std::vector<double> DenseTensors::* which, const auto& numbers) {
    for (const Tracked& x : numbers) {
      (answer.value.*which).push_back(x.value);
      (answer.mass.*which).push_back(x.mass);
    }
  });
  return answer;
}

DenseTensors dense_naive(const Problem& problem, const DenseInputs& inputs, DType dtype) {
  if (dtype == DType::bf16) return naive<DType::bf16>(problem, inputs);
  if (dtype == DType::f16) return naive<DType::f16>(problem, inputs);
  fail("verify.dense_naive", "dtype: expected bf16 or f16, got ", name(dtype));
}

}  // namespace mhla::verify
