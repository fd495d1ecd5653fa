// Tokens of one lane of the open block, written once for every set of vector operations.
//
// R and S are rewritten slice by slice (Setup::level), so the last tokens are still missing in some
// columns; a step adds those from the ring of their keys and values. Several tokens at once are
// products of small matrices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "mhla/core/state_engine.h"

namespace mhla::streaming {

// Tokens that are multiplied at once: bounds the triangle of scores, so that long blocks still cost
// linear time.
inline constexpr std::int64_t kTokensAtOnce = 64;

// A product C = A B of Ops::product; C has whole vectors in a row.
template <typename T>
struct Product {
  const T* a;  // element (m, k) at a[m * a_row + k * a_column]
  std::int64_t a_row, a_column;
  const T* b;  // [depth, ldb]
  std::int64_t ldb;
  T* c;  // [rows, ldc]
  std::int64_t ldc;
  std::int64_t rows, columns, depth;
  bool add = false;       // C += A B
  bool triangle = false;  // A is lower triangular
  T* also = nullptr;      // this [rows, ldc] gets also_weight * A B
  T also_weight = T(0);
};

// Ops provides, for its type T: load, store, dot, add_scaled, row_times_matrix, fold, product.
template <class Ops>
class Lane {
 public:
  using T = typename Ops::T;

  static std::int64_t scratch_size(const Setup& setup) {
    return kTokensAtOnce * (5 * setup.key + 2 * setup.row + 3 * kTokensAtOnce);
  }

  Lane(const Setup& setup, const Tokens<T>& tokens, std::int64_t lane, T* scratch)
      : setup_(setup),
        p_(setup.problem),
        tokens_(tokens),
        batch_(lane / p_.heads),
        head_(lane % p_.heads),
        running_(static_cast<T*>(tokens.running) + lane * setup.width),
        summary_(static_cast<T*>(tokens.summary) + lane * setup.width),
        ring_(static_cast<T*>(tokens.ring) + lane * setup.ring_width),
        z_(tokens.open + lane * setup.open_width),
        next_(tokens.next ? static_cast<T*>(tokens.started) + lane * setup.width : nullptr),
        own_(tokens.own[p_.mixing_per_head ? head_ : 0]),
        next_weight_(next_ ? tokens.next_weight[p_.mixing_per_head ? head_ : 0] : 0) {
    const auto part = [&](std::int64_t count) {
      T* at = scratch;
      scratch += count;
      return at;
    };
    q_ = part(kTokensAtOnce * setup.key);
    k_ = part(kTokensAtOnce * setup.key);
    k_columns_ = part(setup.key * kTokensAtOnce);
    q_den_ = part(kTokensAtOnce * setup.key);
    k_den_ = part(kTokensAtOnce * setup.key);
    v_ = part(kTokensAtOnce * setup.row);
    out_ = part(kTokensAtOnce * setup.row);
    scores_ = part(kTokensAtOnce * kTokensAtOnce);
  }

  void read() {
    if (tokens_.fill == 0) std::fill_n(z_, setup_.key, T(0));
    if (p_.mask == Mask::block_causal) read_block();
    else if (tokens_.count == 1) step();
    else read_chunks();
    if (tokens_.closes) close();
  }

 private:
  bool divides() const { return p_.normalizer != Normalizer::none; }
  bool exact() const { return p_.normalizer == Normalizer::exact; }
  T* ring_k(std::int64_t t) const { return ring_ + t % setup_.fold * setup_.key; }
  T* ring_v(std::int64_t t) const {
    return ring_ + setup_.ring_v_at + t % setup_.fold * setup_.row;
  }
  T* kept_q(std::int64_t w) const { return z_ + setup_.q_at + w * setup_.key; }

  void load(const TensorView& view, std::int64_t t, bool map, T* row) const {
    const std::int64_t at = batch_ * view.strides[0] + t * view.strides[1] +
                            head_ * view.strides[2];
    Ops::load(static_cast<const std::byte*>(view.data) +
                  at * static_cast<std::int64_t>(size_of(view.dtype)),
              view.dtype, view.shape[3], map ? p_.feature_map : FeatureMap::identity, row);
  }
  void store(const T* row, std::int64_t t, T divisor) const {
    const TensorView& o = *tokens_.o;
    const std::int64_t at = batch_ * o.strides[0] + t * o.strides[1] + head_ * o.strides[2];
    Ops::store(row, static_cast<T>(p_.scale), divisor, p_.dv, o.dtype,
               static_cast<std::byte*>(o.data) + at * static_cast<std::int64_t>(size_of(o.dtype)));
  }

  // Denominators read the token's own query; z and R's part of it are up to date.
  T divisor(const T* q_den, std::int64_t position) const {
    if (!divides()) return T(1);
    const T* prefix = running_ + setup_.den_at;
    const T den = exact() ? Ops::dot(q_den, prefix, setup_.key)
                          : prefix[position] + own_ * Ops::dot(q_den, z_, setup_.key);
    return static_cast<T>(p_.scale) * den + static_cast<T>(p_.denominator_eps());
  }
  void absorb_den(const T* q_den, const T* k_den, std::int64_t position) {
    if (!divides()) return;
    Ops::add_scaled(T(1), k_den, z_, setup_.key);
    if (exact()) Ops::add_scaled(own_, k_den, running_ + setup_.den_at, setup_.key);
    else std::copy_n(q_den, setup_.key, kept_q(position));
  }

  // One token. The slice whose turn it is takes up its last tokens; the others add theirs here.
  void step() {
    const State::Inputs& in = *tokens_.inputs;
    const std::int64_t t = tokens_.fill, fill = t + 1;
    load(in.q, tokens_.first, true, q_);
    load(in.k, tokens_.first, true, ring_k(t));
    load(in.v, tokens_.first, false, ring_v(t));
    const T *q_den = q_, *k_den = ring_k(t);
    if (p_.separate_denominator) {
      load(in.q_den, tokens_.first, true, q_den_);
      load(in.k_den, tokens_.first, true, k_den_);
      q_den = q_den_;
      k_den = k_den_;
    }
    absorb_den(q_den, k_den, t);
    for (std::int64_t j = 0; j < setup_.slices; ++j) {
      if (setup_.level(j, fill, tokens_.base) == fill) fold(j, fill, true, t);
    }
    Ops::row_times_matrix(q_, running_, p_.dk, setup_.row, out_);
    const std::int64_t oldest = std::max(tokens_.base, fill - setup_.fold + 1);
    for (std::int64_t u = oldest; u < fill; ++u) {
      const T score = own_ * Ops::dot(q_, ring_k(u), setup_.key);
      for (std::int64_t j = 0; j < setup_.slices; ++j) {
        if (setup_.level(j, fill, tokens_.base) > u) continue;
        const std::int64_t at = j * setup_.slice;
        Ops::add_scaled(score, ring_v(u) + at, out_ + at, std::min(setup_.slice, setup_.row - at));
      }
    }
    store(out_, tokens_.first, divisor(q_den, t));
  }

  // Slice j takes up the tokens before `fill` that it had not with `before` tokens read.
  void fold(std::int64_t j, std::int64_t fill, bool running, std::int64_t before) {
    const std::int64_t from = setup_.level(j, before, tokens_.base), at = j * setup_.slice;
    if (from == fill) return;
    const T* keys[16];
    const T* values[16];
    for (std::int64_t u = from; u < fill; ++u) {
      keys[u - from] = ring_k(u);
      values[u - from] = ring_v(u) + at;
    }
    Ops::fold(keys, values, fill - from, p_.dk, std::min(setup_.slice, setup_.row - at), setup_.row,
              own_, summary_ + at, running ? running_ + at : nullptr);
  }

  void load_chunk(std::int64_t first, std::int64_t count) {
    const State::Inputs& in = *tokens_.inputs;
    for (std::int64_t t = 0; t < count; ++t) {
      load(in.q, first + t, true, q_ + t * setup_.key);
      load(in.k, first + t, true, k_ + t * setup_.key);
      load(in.v, first + t, false, v_ + t * setup_.row);
      if (!p_.separate_denominator) continue;
      load(in.q_den, first + t, true, q_den_ + t * setup_.key);
      load(in.k_den, first + t, true, k_den_ + t * setup_.key);
    }
  }
  const T* den_q(std::int64_t t) const {
    return (p_.separate_denominator ? q_den_ : q_) + t * setup_.key;
  }
  const T* den_k(std::int64_t t) const {
    return (p_.separate_denominator ? k_den_ : k_) + t * setup_.key;
  }

  // S += K^T V, and R as well.
  void absorb(std::int64_t count, bool running) {
    Ops::product({.a = k_,
                  .a_row = 1,
                  .a_column = setup_.key,
                  .b = v_,
                  .ldb = setup_.row,
                  .c = summary_,
                  .ldc = setup_.row,
                  .rows = p_.dk,
                  .columns = setup_.row,
                  .depth = count,
                  .add = true,
                  .also = running ? running_ : nullptr,
                  .also_weight = own_});
  }
  void read_out(std::int64_t count) {
    Ops::product({.a = q_,
                  .a_row = setup_.key,
                  .a_column = 1,
                  .b = running_,
                  .ldb = setup_.row,
                  .c = out_,
                  .ldc = setup_.row,
                  .rows = count,
                  .columns = setup_.row,
                  .depth = p_.dk});
  }
  // The chunk's own triangle.
  void read_scores(std::int64_t count) {
    const std::int64_t padded = (count + 15) / 16 * 16;
    for (std::int64_t t = 0; t < padded; ++t) {
      for (std::int64_t c = 0; c < p_.dk; ++c) {
        k_columns_[c * kTokensAtOnce + t] = t < count ? k_[t * setup_.key + c] : T(0);
      }
    }
    Ops::product({.a = q_,
                  .a_row = setup_.key,
                  .a_column = 1,
                  .b = k_columns_,
                  .ldb = kTokensAtOnce,
                  .c = scores_,
                  .ldc = kTokensAtOnce,
                  .rows = count,
                  .columns = padded,
                  .depth = p_.dk});
    for (std::int64_t t = 0; t < count; ++t) {
      T* row = scores_ + t * kTokensAtOnce;
      for (std::int64_t u = 0; u < count; ++u) row[u] = u <= t ? own_ * row[u] : T(0);
    }
    Ops::product({.a = scores_,
                  .a_row = kTokensAtOnce,
                  .a_column = 1,
                  .b = v_,
                  .ldb = setup_.row,
                  .c = out_,
                  .ldc = setup_.row,
                  .rows = count,
                  .columns = setup_.row,
                  .depth = count,
                  .add = true,
                  .triangle = true});
  }

  template <typename F>
  void each_chunk(F&& f) {
    for (std::int64_t done = 0; done < tokens_.count; done += kTokensAtOnce) {
      const std::int64_t count = std::min(kTokensAtOnce, tokens_.count - done);
      load_chunk(tokens_.first + done, count);
      f(done, count);
    }
  }

  void read_chunks() {
    flush(true, tokens_.fill);
    each_chunk([&](std::int64_t done, std::int64_t count) {
      read_out(count);
      read_scores(count);
      for (std::int64_t t = 0; t < count; ++t) {
        const std::int64_t position = tokens_.fill + done + t;
        absorb_den(den_q(t), den_k(t), position);
        store(out_ + t * setup_.row, tokens_.first + done + t, divisor(den_q(t), position));
      }
      absorb(count, !(tokens_.closes && done + count == tokens_.count));
    });
  }

  void read_block() {
    each_chunk([&](std::int64_t done, std::int64_t count) {
      absorb(count, true);
      for (std::int64_t t = 0; t < count; ++t) {
        absorb_den(den_q(t), den_k(t), tokens_.fill + done + t);
      }
    });
    each_chunk([&](std::int64_t done, std::int64_t count) {
      read_out(count);
      for (std::int64_t t = 0; t < count; ++t) {
        store(out_ + t * setup_.row, tokens_.first + done + t,
              divisor(den_q(t), tokens_.fill + done + t));
      }
    });
  }

  void flush(bool running, std::int64_t fill) {
    for (std::int64_t j = 0; j < setup_.slices; ++j) fold(j, fill, running, fill);
  }

  void close() {
    if (tokens_.count == 1 && p_.mask == Mask::causal) flush(false, tokens_.fill + 1);
    T* den = summary_ + setup_.den_at;
    if (exact()) {
      std::copy_n(z_, setup_.key, den);
    } else if (divides()) {
      for (std::int64_t w = 0; w < setup_.block; ++w) {
        den[w] = Ops::dot(kept_q(w), z_, setup_.key);
      }
    }
    if (next_) Ops::add_scaled(next_weight_, summary_, next_, setup_.width);
  }

  const Setup& setup_;
  const Problem& p_;
  const Tokens<T>& tokens_;
  std::int64_t batch_, head_;
  T *running_, *summary_, *ring_, *z_, *next_;
  T own_, next_weight_;
  T *q_, *k_, *k_columns_, *q_den_, *k_den_, *v_, *out_, *scores_;  // parts of the scratch
};

}  // namespace mhla::streaming
