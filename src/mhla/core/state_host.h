// The engine of streams in host memory, for any set of vector operations.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "mhla/core/state_lane.h"

namespace mhla::streaming {

// Ops also provides mix (one item's numbers), threads (how many a number of bytes pays for) and
// each (a loop spread over threads).
template <class Ops>
class HostEngine final : public Engine<typename Ops::T> {
 public:
  using T = typename Ops::T;
  using Share = typename Engine<T>::Share;

  explicit HostEngine(std::shared_ptr<const Setup> setup) : setup_(std::move(setup)) {}
  std::unique_ptr<Engine<T>> clone() const override { return std::make_unique<HostEngine>(setup_); }

  // 8 KiB of f32: a slab of kGroup targets stays in the caches while the sources pass by.
  MixItems mix_items() const override { return {.slab = 2048, .chunk = 16, .slab_major = true}; }

  // All numbers are T.
  Buffer allocate(Numbers, std::int64_t count) override {
    constexpr std::align_val_t kLine{64};
    return {::operator new(static_cast<std::size_t>(count) * sizeof(T), kLine),
            [](void* p) { ::operator delete(p, kLine); }};
  }
  void clear(Numbers, void* data, std::int64_t count) override {
    std::fill_n(static_cast<T*>(data), count, T(0));
  }
  void copy(Numbers, void* to, const void* from, std::int64_t count) override {
    std::copy_n(static_cast<const T*>(from), count, static_cast<T*>(to));
  }
  void upload(Numbers, void* to, const T* host, std::int64_t count) override {
    std::copy_n(host, count, static_cast<T*>(to));
  }
  void download(Numbers, T* host, const void* from, std::int64_t count) override {
    std::copy_n(static_cast<const T*>(from), count, host);
  }
  void store(void* stored, const T* sums, std::int64_t count) override {
    std::copy_n(sums, count, static_cast<T*>(stored));
  }
  void use(void*) override {}

  void run(const Tokens<T>* tokens, std::span<const Share> shares) override {
    struct Part {
      Mix<T>* mix;
      std::int64_t first, last, first_slab, slabs;
    };
    Part parts[3];
    std::size_t count = 0;
    std::int64_t units = tokens ? setup_->lanes : 0, bytes = 0;
    if (tokens) bytes += setup_->size * std::int64_t{sizeof(T)} * (1 + tokens->count / 2);
    for (const Share& share : shares) {
      Mix<T>& mix = *share.mix;
      Part& part = parts[count++];
      part = {&mix, mix.done, mix.done + share.items, mix.done / mix.chunks, 0};
      part.slabs = (part.last + mix.chunks - 1) / mix.chunks - part.first_slab;
      mix.done = part.last;
      units += part.slabs;
      bytes += share.items * 2048 * std::int64_t{sizeof(T)} *
               std::min<std::int64_t>(16, static_cast<std::int64_t>(mix.from.size()));
    }
    const int threads = Ops::threads(bytes, units);
    const auto scratch = static_cast<std::size_t>(Lane<Ops>::scratch_size(*setup_));
    if (scratch_.size() < static_cast<std::size_t>(threads)) scratch_.resize(threads);
    for (auto& memory : scratch_) memory.resize(scratch);
    Ops::each(threads, units, [&](std::int64_t unit, int rank) {
      if (tokens) {
        if (unit < setup_->lanes) {
          return Lane<Ops>(*setup_, *tokens, unit, scratch_[static_cast<std::size_t>(rank)].data())
              .read();
        }
        unit -= setup_->lanes;
      }
      std::size_t at = 0;
      for (; unit >= parts[at].slabs; ++at) unit -= parts[at].slabs;
      const Part& part = parts[at];
      const std::int64_t slab = part.first_slab + unit, origin = slab * part.mix->chunks;
      mix_slab(*part.mix, slab, std::max<std::int64_t>(0, part.first - origin),
               std::min(part.mix->chunks, part.last - origin));
    });
  }

 private:
  // Chunks [first, last) of the sources of one slab.
  void mix_slab(const Mix<T>& mix, std::int64_t slab, std::int64_t first, std::int64_t last) const {
    const MixItems items = mix_items();
    const std::int64_t lane = slab / mix.slabs_per_lane;
    const std::int64_t begin = slab % mix.slabs_per_lane * items.slab;
    const std::int64_t length = std::min(items.slab, setup_->width - begin);
    const std::int64_t offset = lane * setup_->width + begin;
    const Problem& problem = setup_->problem;
    const auto sources = static_cast<std::int64_t>(mix.from.size());
    const auto rows = static_cast<std::int64_t>(mix.to.size());
    const std::int64_t head = problem.mixing_per_head ? lane % problem.heads : 0;
    if (first == 0 && mix.clear) {
      std::fill_n(static_cast<T*>(mix.clear) + offset, length, T(0));
    }
    if (sources == 0 && !mix.add) {
      for (T* to : mix.to) std::fill_n(to + offset, length, T(0));
    }
    for (std::int64_t chunk = first; chunk < last; ++chunk) {
      const std::int64_t from = chunk * items.chunk;
      const std::int64_t count = std::min(items.chunk, sources - from);
      if (count <= 0) break;
      Ops::mix(mix.to.data(), rows, mix.from.data() + from, count,
               mix.weights.data() + head * rows * sources + from, sources, mix.add || chunk > 0,
               offset, length);
    }
  }

  std::shared_ptr<const Setup> setup_;
  std::vector<std::vector<T>> scratch_;
};

}  // namespace mhla::streaming
