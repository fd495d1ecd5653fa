// Reading tokens into a stream and computing their outputs, chunk by chunk.
//
// Inside block i the output of token s is (spec 1.7, 1.8)
//   scale * ( phi(q_s) (P_i + m_ii S) + m_ii * sum_t (phi(q_s) . phi(k_t)) v_t ) / denominator,
// with S the tokens of the block before the chunk and t the tokens of the chunk up to s. The
// denominator has the same two parts. block_causal reads the whole block into S first.
#include "mhla/core/state_core.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "mhla/core/half.h"

namespace mhla::streaming {
namespace {

// Bounds the triangle of scores inside a chunk, so that long blocks still cost linear time.
constexpr std::int64_t kChunk = 64;

template <typename T>
void apply_feature_map(FeatureMap map, T* x, std::int64_t count) {
  switch (map) {
    case FeatureMap::relu_eps:
      for (std::int64_t i = 0; i < count; ++i) x[i] = std::max(x[i], T(0)) + T(kReluEps);
      return;
    case FeatureMap::relu:
      for (std::int64_t i = 0; i < count; ++i) x[i] = std::max(x[i], T(0));
      return;
    case FeatureMap::elu1:
      for (std::int64_t i = 0; i < count; ++i) x[i] = x[i] > T(0) ? x[i] + T(1) : std::exp(x[i]);
      return;
    case FeatureMap::identity: return;
  }
  fail(ErrorCode::internal, "state", "feature map outside the enumeration");
}

// Row (b, t, h) of a [B, T, H, D] view.
template <typename T>
void load_row(const TensorView& view, std::int64_t b, std::int64_t t, std::int64_t h, T* row) {
  with_dtype(view.dtype, [&](auto tag) {
    const auto* source = static_cast<const decltype(tag)*>(view.data) + b * view.strides[0] +
                         t * view.strides[1] + h * view.strides[2];
    for (std::int64_t i = 0; i < view.shape[3]; ++i) row[i] = static_cast<T>(to_float(source[i]));
  });
}

template <typename T>
void store_row(const TensorView& view, std::int64_t b, std::int64_t t, std::int64_t h,
               const T* row) {
  with_dtype(view.dtype, [&](auto tag) {
    auto* target = static_cast<decltype(tag)*>(view.data) + b * view.strides[0] +
                   t * view.strides[1] + h * view.strides[2];
    for (std::int64_t i = 0; i < view.shape[3]; ++i) target[i] = from_float<decltype(tag)>(row[i]);
  });
}

template <typename T>
T dot(const T* a, const T* b, std::int64_t count) {
  T sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

template <typename T>
void add_scaled(T weight, const T* x, T* sum, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] += weight * x[i];
}

template <typename T>
std::size_t bytes_of(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}

}  // namespace

template <typename T>
struct Stream<T>::Chunk {
  std::int64_t first = 0;     // token of the piece
  std::int64_t position = 0;  // of that token inside the block
  std::int64_t count = 0;
  std::vector<T> q, k, v;       // [count, dk], [count, dk], [count, dv]
  std::vector<T> q_den, k_den;  // [count, dk] with separate_denominator

  const T* den_q(std::int64_t t, std::int64_t dk) const {
    return (q_den.empty() ? q : q_den).data() + t * dk;
  }
  const T* den_k(std::int64_t t, std::int64_t dk) const {
    return (k_den.empty() ? k : k_den).data() + t * dk;
  }
};

template <typename T>
Stream<T>::Stream(std::shared_ptr<const Setup> setup) : setup_(std::move(setup)) {}

template <typename T>
Stream<T>::Stream(std::shared_ptr<const Setup> setup, Closed closed, OpenBlock<T> open)
    : setup_(std::move(setup)), closed_(std::move(closed)) {
  if (open.fill == 0) return;
  open_block();  // the prefix follows from the closed blocks, bit for bit
  open_ = std::move(open);
}

template <typename T>
std::int64_t Stream<T>::tokens() const {
  return static_cast<std::int64_t>(closed_.size()) * setup_->block + open_.fill;
}

template <typename T>
std::size_t Stream<T>::bytes() const {
  std::size_t total = setup_->mixing_bytes() + bytes_of(open_.s) + bytes_of(open_.z) +
                      bytes_of(open_.q) + bytes_of(own_);
  if (prefix_) total += bytes_of(prefix_->s) + bytes_of(prefix_->den);
  for (const auto& block : closed_) total += bytes_of(block->s) + bytes_of(block->den);
  return total;
}

template <typename T>
void Stream<T>::rewind_to_block(std::int64_t block) {
  closed_.resize(static_cast<std::size_t>(block));
  open_ = {};
  prefix_.reset();
  own_.clear();
}

template <typename T>
void Stream<T>::open_block() {
  const Problem& problem = setup_->problem;
  const std::int64_t lanes = setup_->lanes, s_width = setup_->s_width;
  const std::int64_t den_width = setup_->den_width;
  const auto i = static_cast<std::int64_t>(closed_.size());
  const std::vector<float> row = setup_->row(i);
  own_.clear();
  for (std::int64_t head = 0; head < setup_->mixing_heads(); ++head) {
    own_.push_back(row[head * (i + 1) + i]);
  }
  open_.s.assign(lanes * s_width, T(0));
  if (problem.normalizer != Normalizer::none) open_.z.assign(lanes * problem.dk, T(0));
  if (i == 0) return;

  auto prefix = std::make_shared<Summary<T>>();
  prefix->s.assign(lanes * s_width, T(0));
  prefix->den.assign(lanes * den_width, T(0));
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    const std::int64_t head = problem.mixing_per_head ? lane % problem.heads : 0;
    for (std::int64_t b = 0; b < i; ++b) {
      const T weight = row[head * (i + 1) + b];
      add_scaled(weight, closed_[b]->s.data() + lane * s_width, prefix->s.data() + lane * s_width,
                 s_width);
      add_scaled(weight, closed_[b]->den.data() + lane * den_width,
                 prefix->den.data() + lane * den_width, den_width);
    }
  }
  prefix_ = std::move(prefix);
}

template <typename T>
void Stream<T>::close_block() {
  const std::int64_t lanes = setup_->lanes, block = setup_->block, dk = setup_->problem.dk;
  auto summary = std::make_shared<Summary<T>>();
  if (setup_->problem.normalizer == Normalizer::shared_position) {
    summary->den.resize(lanes * block);
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      for (std::int64_t w = 0; w < block; ++w) {
        summary->den[lane * block + w] = dot(open_.q.data() + (w * lanes + lane) * dk,
                                             open_.z.data() + lane * dk, dk);
      }
    }
  } else {
    summary->den = std::move(open_.z);
  }
  summary->s = std::move(open_.s);
  closed_.push_back(std::move(summary));
  rewind_to_block(static_cast<std::int64_t>(closed_.size()));
}

template <typename T>
void Stream<T>::read(const State::Inputs& inputs, const TensorView& o) {
  const std::int64_t count = inputs.q.shape[1];
  for (std::int64_t first = 0; first < count;) {
    if (open_.fill == 0) open_block();
    const std::int64_t part = std::min(setup_->block - open_.fill, count - first);
    read_part(inputs, o, first, part);
    first += part;
    open_.fill += part;
    if (open_.fill == setup_->block) close_block();
  }
}

template <typename T>
void Stream<T>::read_part(const State::Inputs& inputs, const TensorView& o, std::int64_t first,
                          std::int64_t count) {
  if (setup_->problem.normalizer == Normalizer::shared_position) {
    open_.q.resize((open_.fill + count) * setup_->lanes * setup_->problem.dk);
  }
  Chunk chunk;
  const auto for_each_chunk = [&](std::int64_t lane, auto&& visit) {
    for (std::int64_t done = 0; done < count; done += kChunk) {
      chunk.first = first + done;
      chunk.position = open_.fill + done;
      chunk.count = std::min(kChunk, count - done);
      gather(inputs, lane, chunk);
      visit();
    }
  };
  for (std::int64_t lane = 0; lane < setup_->lanes; ++lane) {
    if (setup_->problem.mask == Mask::causal) {
      for_each_chunk(lane, [&] {
        write_out(chunk, lane, o);
        absorb(chunk, lane);
      });
    } else {
      for_each_chunk(lane, [&] { absorb(chunk, lane); });
      for_each_chunk(lane, [&] { write_out(chunk, lane, o); });
    }
  }
}

template <typename T>
void Stream<T>::gather(const State::Inputs& inputs, std::int64_t lane, Chunk& chunk) const {
  const Problem& problem = setup_->problem;
  const std::int64_t b = lane / problem.heads, h = lane % problem.heads;
  const auto load = [&](const TensorView& view, std::vector<T>& rows) {
    const std::int64_t width = view.shape[3];
    rows.resize(chunk.count * width);
    for (std::int64_t t = 0; t < chunk.count; ++t) {
      load_row(view, b, chunk.first + t, h, rows.data() + t * width);
    }
  };
  const auto load_features = [&](const TensorView& view, std::vector<T>& rows) {
    load(view, rows);
    apply_feature_map(problem.feature_map, rows.data(), static_cast<std::int64_t>(rows.size()));
  };
  load_features(inputs.q, chunk.q);
  load_features(inputs.k, chunk.k);
  load(inputs.v, chunk.v);
  if (!problem.separate_denominator) return;
  load_features(inputs.q_den, chunk.q_den);
  load_features(inputs.k_den, chunk.k_den);
}

template <typename T>
void Stream<T>::absorb(const Chunk& chunk, std::int64_t lane) {
  const Problem& problem = setup_->problem;
  const std::int64_t dk = problem.dk, dv = problem.dv;
  T* s = open_.s.data() + lane * setup_->s_width;
  for (std::int64_t t = 0; t < chunk.count; ++t) {
    for (std::int64_t c = 0; c < dk; ++c) {
      add_scaled(chunk.k[t * dk + c], chunk.v.data() + t * dv, s + c * dv, dv);
    }
    if (problem.normalizer == Normalizer::none) continue;
    add_scaled(T(1), chunk.den_k(t, dk), open_.z.data() + lane * dk, dk);
    if (problem.normalizer == Normalizer::exact) continue;
    std::copy_n(chunk.den_q(t, dk), dk,
                open_.q.data() + ((chunk.position + t) * setup_->lanes + lane) * dk);
  }
}

template <typename T>
void Stream<T>::write_out(const Chunk& chunk, std::int64_t lane, const TensorView& o) const {
  const Problem& problem = setup_->problem;
  const std::int64_t dk = problem.dk, dv = problem.dv, den_width = setup_->den_width;
  const T own = own_[problem.mixing_per_head ? lane % problem.heads : 0];
  const T scale = static_cast<T>(problem.scale), eps = static_cast<T>(problem.denominator_eps());
  const bool triangle = problem.mask == Mask::causal;  // otherwise S holds the chunk already
  const T* s = open_.s.data() + lane * setup_->s_width;
  std::vector<T> from_block(dv), row(dv);

  for (std::int64_t t = 0; t < chunk.count; ++t) {
    const T* q = chunk.q.data() + t * dk;
    std::fill(from_block.begin(), from_block.end(), T(0));
    for (std::int64_t c = 0; c < dk; ++c) add_scaled(q[c], s + c * dv, from_block.data(), dv);
    for (std::int64_t u = 0; triangle && u <= t; ++u) {
      const T score = dot(q, chunk.k.data() + u * dk, dk);
      add_scaled(score, chunk.v.data() + u * dv, from_block.data(), dv);
    }
    std::fill(row.begin(), row.end(), T(0));
    if (prefix_) {
      const T* p = prefix_->s.data() + lane * setup_->s_width;
      for (std::int64_t c = 0; c < dk; ++c) add_scaled(q[c], p + c * dv, row.data(), dv);
    }
    add_scaled(own, from_block.data(), row.data(), dv);

    T divisor = 1;
    if (problem.normalizer != Normalizer::none) {
      const T* q_den = chunk.den_q(t, dk);
      T own_den = dot(q_den, open_.z.data() + lane * dk, dk);
      for (std::int64_t u = 0; triangle && u <= t; ++u)
        own_den += dot(q_den, chunk.den_k(u, dk), dk);
      T den = own * own_den;
      if (prefix_) {
        const T* p = prefix_->den.data() + lane * den_width;
        den += problem.normalizer == Normalizer::exact ? dot(q_den, p, dk) : p[chunk.position + t];
      }
      divisor = scale * den + eps;
    }
    for (T& value : row) value = divisor == T(0) ? T(0) : scale * value / divisor;
    store_row(o, lane / problem.heads, chunk.first + t, lane % problem.heads, row.data());
  }
}

template class Stream<float>;
template class Stream<double>;

AnyStream make_stream(const std::shared_ptr<const Setup>& setup) {
  if (setup->problem.dtype == DType::f64) return Stream<double>(setup);
  return Stream<float>(setup);
}

}  // namespace mhla::streaming
