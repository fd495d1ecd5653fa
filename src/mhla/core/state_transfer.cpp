// Streams from and to numbers without padding on the host, as files hold them.
#include <algorithm>

#include "mhla/core/state_core.h"

namespace mhla::streaming {
namespace {

// Calls f(plain offset, padded offset, count) for each run of numbers.
template <typename F>
void each_row(const Setup& setup, F&& f) {
  const Problem& p = setup.problem;
  for (std::int64_t lane = 0; lane < setup.lanes; ++lane) {
    for (std::int64_t c = 0; c < p.dk; ++c) {
      f((lane * p.dk + c) * p.dv, lane * setup.width + c * setup.row, p.dv);
    }
    f(setup.lanes * setup.s_width + lane * setup.den_width, lane * setup.width + setup.den_at,
      setup.den_width);
  }
}

// The same for what the open block has beside its matrices, and for the ring.
template <typename Z, typename Q, typename KV>
void each_open_row(const Setup& setup, std::int64_t fill, std::int64_t pending, Z&& z, Q&& q,
                   KV&& kv) {
  const Problem& p = setup.problem;
  for (std::int64_t lane = 0; lane < setup.lanes; ++lane) {
    const std::int64_t at = lane * setup.open_width, ring = lane * setup.ring_width;
    if (p.normalizer != Normalizer::none) z(lane * p.dk, at);
    if (p.normalizer == Normalizer::shared_position) {
      for (std::int64_t w = 0; w < fill; ++w) {
        q((w * setup.lanes + lane) * p.dk, at + setup.q_at + w * setup.key);
      }
    }
    for (std::int64_t u = 0; u < pending; ++u) {
      const std::int64_t slot = (fill - pending + u) % setup.fold;
      kv(u * setup.lanes + lane, ring + slot * setup.key,
         ring + setup.ring_v_at + slot * setup.row);
    }
  }
}

template <typename T>
std::vector<T> without_padding(const Setup& setup, const std::vector<T>& padded) {
  std::vector<T> plain(static_cast<std::size_t>(setup.lanes * (setup.s_width + setup.den_width)));
  each_row(setup, [&](std::int64_t to, std::int64_t from, std::int64_t count) {
    std::copy_n(padded.begin() + from, count, plain.begin() + to);
  });
  return plain;
}

template <typename T>
std::vector<T> with_padding(const Setup& setup, const T* s, const T* den) {
  std::vector<T> padded(static_cast<std::size_t>(setup.size), T(0));
  const std::int64_t den_from = setup.lanes * setup.s_width;
  each_row(setup, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    if (count == 0 || (from >= den_from && den == nullptr)) return;
    std::copy_n(from < den_from ? s + from : den + (from - den_from), count, padded.begin() + to);
  });
  return padded;
}

}  // namespace

template <typename T>
std::vector<T> Stream<T>::export_summary(std::int64_t block) const {
  std::vector<T> padded(static_cast<std::size_t>(setup_->size));
  engine_->download(Numbers::stored, padded.data(), closed_[block].get(), setup_->size);
  return without_padding(*setup_, padded);
}

template <typename T>
OpenBlock<T> Stream<T>::export_open() const {
  const Problem& p = setup_->problem;
  OpenBlock<T> out;
  out.fill = fill_;
  out.base = base_;
  if (fill_ == 0) return out;
  std::vector<T> padded(static_cast<std::size_t>(setup_->size));
  engine_->download(Numbers::stored, padded.data(), running_.get(), setup_->size);
  out.running = without_padding(*setup_, padded);
  engine_->download(Numbers::stored, padded.data(), summary_.get(), setup_->size);
  out.s = without_padding(*setup_, padded);
  out.s.resize(static_cast<std::size_t>(setup_->lanes * setup_->s_width));
  std::vector<T> open(static_cast<std::size_t>(open_size()));
  engine_->download(Numbers::sums, open.data(), open_.get(), open_size());
  std::vector<T> ring(static_cast<std::size_t>(ring_size()));
  engine_->download(Numbers::stored, ring.data(), ring_.get(), ring_size());
  const auto rows = static_cast<std::size_t>(setup_->lanes);
  const auto pending = static_cast<std::size_t>(out.pending(*setup_));
  const auto dk = static_cast<std::size_t>(p.dk), dv = static_cast<std::size_t>(p.dv);
  out.k.resize(pending * rows * dk);
  out.v.resize(pending * rows * dv);
  if (p.normalizer != Normalizer::none) out.z.resize(rows * dk);
  if (p.normalizer == Normalizer::shared_position) {
    out.q.resize(static_cast<std::size_t>(fill_) * rows * dk);
  }
  const T* from = open.data();
  each_open_row(
      *setup_, fill_, out.pending(*setup_),
      [&](std::int64_t to, std::int64_t at) { std::copy_n(from + at, dk, out.z.data() + to); },
      [&](std::int64_t to, std::int64_t at) { std::copy_n(from + at, dk, out.q.data() + to); },
      [&](std::int64_t row, std::int64_t k_at, std::int64_t v_at) {
        std::copy_n(ring.data() + k_at, dk, out.k.data() + row * p.dk);
        std::copy_n(ring.data() + v_at, dv, out.v.data() + row * p.dv);
      });
  return out;
}

template <typename T>
void Stream<T>::import_summary(const T* s, const T* den) {
  const std::vector<T> padded = with_padding(*setup_, s, den);
  Buffer buffer = allocate(Numbers::stored);
  engine_->upload(Numbers::stored, buffer.get(), padded.data(), setup_->size);
  closed_.push_back(std::move(buffer));
}

template <typename T>
void Stream<T>::import_open(const OpenBlock<T>& in) {
  const Problem& p = setup_->problem;
  if (in.fill == 0) return;
  reserve(1);
  open_block();  // the prefix follows from the closed blocks, bit for bit
  fill_ = in.fill;
  base_ = in.base;
  const std::int64_t matrices = setup_->lanes * setup_->s_width;
  std::vector<T> padded = with_padding<T>(*setup_, in.s.data(), nullptr);
  engine_->upload(Numbers::stored, summary_.get(), padded.data(), setup_->size);
  if (!in.running.empty()) {
    padded = with_padding(*setup_, in.running.data(), in.running.data() + matrices);
  } else {
    std::vector<T> prefix(static_cast<std::size_t>(setup_->size));
    engine_->download(Numbers::stored, prefix.data(), running_.get(), setup_->size);
    for (std::int64_t lane = 0; lane < setup_->lanes; ++lane) {
      const T own = own_[p.mixing_per_head ? lane % p.heads : 0];
      T* at = prefix.data() + lane * setup_->width;
      const T* s = padded.data() + lane * setup_->width;
      for (std::int64_t i = 0; i < setup_->den_at; ++i) at[i] += own * s[i];
      if (p.normalizer != Normalizer::exact) continue;
      for (std::int64_t c = 0; c < p.dk; ++c) at[setup_->den_at + c] += own * in.z[lane * p.dk + c];
    }
    padded = std::move(prefix);
  }
  engine_->upload(Numbers::stored, running_.get(), padded.data(), setup_->size);

  std::vector<T> open(static_cast<std::size_t>(open_size()), T(0));
  std::vector<T> ring(static_cast<std::size_t>(ring_size()), T(0));
  T* to = open.data();
  each_open_row(
      *setup_, fill_, in.pending(*setup_),
      [&](std::int64_t from, std::int64_t at) {
        for (std::int64_t copy = 0; copy < setup_->z_copies; ++copy) {
          std::copy_n(in.z.data() + from, p.dk, to + at + copy * setup_->key);
        }
      },
      [&](std::int64_t from, std::int64_t at) { std::copy_n(in.q.data() + from, p.dk, to + at); },
      [&](std::int64_t row, std::int64_t k_at, std::int64_t v_at) {
        std::copy_n(in.k.data() + row * p.dk, p.dk, ring.data() + k_at);
        std::copy_n(in.v.data() + row * p.dv, p.dv, ring.data() + v_at);
      });
  engine_->upload(Numbers::sums, open_.get(), open.data(), open_size());
  engine_->upload(Numbers::stored, ring_.get(), ring.data(), ring_size());
}

template std::vector<float> Stream<float>::export_summary(std::int64_t) const;
template std::vector<double> Stream<double>::export_summary(std::int64_t) const;
template OpenBlock<float> Stream<float>::export_open() const;
template OpenBlock<double> Stream<double>::export_open() const;
template void Stream<float>::import_summary(const float*, const float*);
template void Stream<double>::import_summary(const double*, const double*);
template void Stream<float>::import_open(const OpenBlock<float>&);
template void Stream<double>::import_open(const OpenBlock<double>&);

}  // namespace mhla::streaming
