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

// Sources of an item of a wide group: few enough that the pages they lie in stay in the translation
// buffer of a core while it walks along their columns.
inline constexpr std::int64_t kWideChunk = 32;

// Numbers [offset, offset + count) of a mixture's rows, from some of its sources: Ops::mix.
template <typename T>
struct MixPart {
  T* const* to;  // [rows]
  std::int64_t rows;
  const void* const* from;  // [sources]
  std::int64_t sources;
  const T* weights;  // [rows, stride]
  std::int64_t stride;
  bool add;
  std::int64_t offset, count;
  // What is wanted next: numbers [ahead, ahead + count) of these sources.
  const void* const* next;
  std::int64_t next_sources, ahead;
};

// A loop over units of work. Those of lanes, [near, near + lanes), come back in every step with the
// same memory, so they stay with a thread: the caches of another core may be far away.
struct Units {
  std::int64_t count = 0, near = 0, lanes = 0;
};

// Ops also provides mix (one item's numbers), threads (how many a number of bytes pays for) and
// each (a loop over Units spread over threads).
template <class Ops>
class HostEngine final : public Engine<typename Ops::T> {
 public:
  using T = typename Ops::T;
  using Share = typename Engine<T>::Share;

  explicit HostEngine(std::shared_ptr<const Setup> setup) : setup_(std::move(setup)) {}
  std::unique_ptr<Engine<T>> clone() const override { return std::make_unique<HostEngine>(setup_); }

  // 8 KiB of f32: a slab of kGroup targets stays in the caches while the sources pass by. Columns
  // of a wide group are a page, or half of one where a step of few lanes would have less than an
  // item.
  MixItems mix_items() const override {
    return {.slab = 2048,
            .chunk = 16,
            .slab_major = true,
            .wide_rows = 32,
            .wide_slab = setup_->size < (1 << 20) ? 512 : 1024,
            .wide_chunk = kWideChunk};
  }

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
    // The largest units come first: wide groups, lanes, and then what fills the rest.
    struct Part {
      Mix<T>* mix;  // null: the tokens
      std::int64_t first, last, first_slab, units;
    };
    Part parts[4];
    std::size_t count = 0;
    Units units;
    std::int64_t bytes = 0;
    const auto add_share = [&](const Share& share) {
      Mix<T>& mix = *share.mix;
      Part part = {&mix, mix.done, mix.done + share.items, mix.done / mix.chunks, 0};
      part.units = (part.last + mix.chunks - 1) / mix.chunks - part.first_slab;
      mix.done = part.last;
      units.count += part.units;
      bytes += share.items * std::min(mix.slab, setup_->width) * cost(mix);
      parts[count++] = part;
    };
    for (const Share& share : shares) {
      if (share.mix->kind == Mix<T>::Kind::wide) add_share(share);
    }
    if (tokens) {
      parts[count++] = {nullptr, 0, 0, 0, setup_->lanes};
      units = {units.count + setup_->lanes, units.count, setup_->lanes};
      bytes += setup_->size * std::int64_t{sizeof(T)} * (1 + tokens->count / 2);
    }
    for (const Share& share : shares) {
      if (share.mix->kind != Mix<T>::Kind::wide) add_share(share);
    }
    const int threads = Ops::threads(bytes, units.count);
    const auto scratch = static_cast<std::size_t>(Lane<Ops>::scratch_size(*setup_));
    if (scratch_.size() < static_cast<std::size_t>(threads)) scratch_.resize(threads);
    for (auto& memory : scratch_) memory.resize(scratch);
    Ops::each(threads, units, [&](std::int64_t unit, int rank) {
      std::size_t at = 0;
      for (; unit >= parts[at].units; ++at) unit -= parts[at].units;
      const Part& part = parts[at];
      if (!part.mix) {
        return Lane<Ops>(*setup_, *tokens, unit, scratch_[static_cast<std::size_t>(rank)].data())
            .read();
      }
      const std::int64_t slab = part.first_slab + unit, origin = slab * part.mix->chunks;
      mix_slab(*part.mix, slab, std::max<std::int64_t>(0, part.first - origin),
               std::min(part.mix->chunks, part.last - origin), threads);
    });
  }

 private:
  // What a number of each source of an item costs, in bytes that could be read meanwhile: its own,
  // or the multiply-adds of many rows, four for a number.
  static std::int64_t cost(const Mix<T>& mix) {
    const auto sources = std::min(mix.chunk, static_cast<std::int64_t>(mix.from.size()));
    const auto rows = static_cast<std::int64_t>(mix.to.size());
    return sources * std::int64_t{sizeof(T)} * std::max<std::int64_t>(1, rows / 4);
  }

  // Chunks [first, last) of the sources of one slab; the one `ahead` slabs later comes soon.
  void mix_slab(const Mix<T>& mix, std::int64_t slab, std::int64_t first, std::int64_t last,
                std::int64_t ahead) const {
    const std::int64_t lane = slab / mix.slabs_per_lane;
    const std::int64_t begin = slab % mix.slabs_per_lane * mix.slab;
    const std::int64_t length = std::min(mix.slab, setup_->width - begin);
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
      const std::int64_t from = chunk * mix.chunk;
      const std::int64_t count = std::min(mix.chunk, sources - from);
      if (count <= 0) break;
      const bool more = chunk + 1 < mix.chunks;
      Ops::mix({.to = mix.to.data(),
                .rows = rows,
                .from = mix.from.data() + from,
                .sources = count,
                .weights = mix.weights.data() + head * rows * sources + from,
                .stride = sources,
                .add = mix.add || chunk > 0,
                .offset = offset,
                .count = length,
                .next = mix.from.data() + (more ? from + count : 0),
                .next_sources = std::min(mix.chunk, more ? sources - from - count : sources),
                .ahead = offset + (more ? 0 : ahead * mix.slab)});
    }
  }

  std::shared_ptr<const Setup> setup_;
  std::vector<std::vector<T>> scratch_;
};

}  // namespace mhla::streaming
