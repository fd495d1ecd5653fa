// Reading tokens into a stream, and what is prepared meanwhile.
//
// Inside block i the output of token s is (spec 1.7, 1.8)
//   scale * phi(q_s) (P_i + m_ii S_i) / denominator,  P_i = sum over b < i of m_ib S_b,
// with S_i the tokens of the block up to s (all of them for block_causal). P_i needs every closed
// summary, so its cost grows with the position. Two things keep it small and even:
// - while block i is read, each step mixes a share of P_{i+1}; S_i itself is added when it closes;
// - the summaries far back are mixed for a group of kGroup rows at once, each read once for all of
//   them, while the group before is read; after long prompts those further back for a wide group of
//   rows in the same way.
#include "mhla/core/state_core.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "mhla/error.h"

namespace mhla::streaming {
namespace {

// Rows of a group: their sums fit the registers of a kernel.
constexpr std::int64_t kGroup = 8;
// Closed blocks from which on a wide group is worth its memory: two buffers a row.
constexpr std::int64_t kWideFrom = 96;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Part of `left` items when `now` of `remaining` steps are taken.
std::int64_t share_of(std::int64_t left, std::int64_t now, std::int64_t remaining) {
  if (now >= remaining) return left;
  return std::min(left, ceil_div(left * now, remaining));
}

template <typename T>
std::unique_ptr<Engine<T>> make_engine(const std::shared_ptr<const Setup>& setup) {
  if constexpr (std::is_same_v<T, double>) {
    return make_engine_f64(setup);
  } else {
    if (setup->problem.device.kind == Device::Kind::cuda) return make_cuda_engine(setup);
    return make_engine_f32(setup);
  }
}

bool shared(const Buffer& buffer) {
  if (buffer.use_count() > 1) return true;
  std::atomic_thread_fence(std::memory_order_acquire);  // the last other reader has finished
  return false;
}

}  // namespace

template <typename T>
Stream<T>::Stream(std::shared_ptr<const Setup> setup)
    : setup_(std::move(setup)), engine_(make_engine<T>(setup_)) {}

template <typename T>
Stream<T>::Stream(const Stream& other)
    : setup_(other.setup_),
      engine_(other.engine_->clone()),
      closed_(other.closed_),
      fill_(other.fill_),
      base_(other.base_),
      running_(other.running_),
      summary_(other.summary_),
      ring_(other.ring_),
      open_(other.open_),
      own_(other.own_),
      next_weight_(other.next_weight_),
      next_(other.next_),
      group_(other.group_),
      ahead_(other.ahead_),
      wide_(other.wide_),
      wide_ahead_(other.wide_ahead_) {
  // NOTE: on a device the other state may write what is shared as soon as it is not shared any
  // more, on another stream than ours; so the copy is made now.
  if (setup_->problem.device.kind != Device::Kind::cpu) own_all();
}

template <typename T>
std::size_t Stream<T>::bytes() const {
  const auto count = [](const Buffer& buffer) { return buffer ? std::int64_t{1} : 0; };
  auto stored = static_cast<std::int64_t>(closed_.size() + spares_[1].size());
  auto sums = static_cast<std::int64_t>(spares_[0].size());
  stored += count(running_) + count(summary_);
  if (next_) {
    sums += count(next_->prefix);
    stored += count(next_->started) + count(next_->summary);
  }
  for (const auto* group : {&group_, &ahead_, &wide_, &wide_ahead_}) {
    if (!*group) continue;
    for (const Buffer& row : (*group)->rows) sums += count(row);
  }
  stored = stored * setup_->size + (ring_ ? ring_size() : 0);
  sums = sums * setup_->size + (open_ ? open_size() : 0);
  const std::size_t stored_bytes = setup_->packed ? 2 : sizeof(T);
  return setup_->mixing_bytes() + stored_bytes * static_cast<std::size_t>(stored) +
         sizeof(T) * static_cast<std::size_t>(sums);
}

template <typename T>
Buffer Stream<T>::spare(Numbers kind) {
  std::vector<Buffer>& from = spares(kind);
  if (from.empty()) return allocate(kind);
  Buffer buffer = std::move(from.back());
  from.pop_back();
  return buffer;
}

template <typename T>
void Stream<T>::keep(Numbers kind, Buffer&& buffer) {
  if (buffer && !shared(buffer)) spares(kind).push_back(std::move(buffer));
  buffer.reset();
}

template <typename T>
void Stream<T>::keep(std::optional<Group>& group) {
  if (!group) return;
  for (Buffer& buffer : group->rows) keep(Numbers::sums, std::move(buffer));
  group.reset();
}

// Everything that may fail for want of memory comes before the first token is read.
template <typename T>
void Stream<T>::reserve(std::int64_t count) {
  const std::int64_t blocks = ceil_div(fill_ + count, setup_->block);
  const std::int64_t opened = blocks - (fill_ > 0 ? 1 : 0);
  closed_.reserve(static_cast<std::size_t>(closed() + blocks));
  const std::int64_t wide = engine_->mix_items().wide_rows;
  for (auto& list : spares_) {
    list.reserve(static_cast<std::size_t>(blocks + 4 * kGroup + 2 * wide + 4));
  }
  if (!open_) {
    open_ = engine_->allocate(Numbers::sums, open_size());
    engine_->clear(Numbers::sums, open_.get(), open_size());
    ring_ = engine_->allocate(Numbers::stored, ring_size());
    engine_->clear(Numbers::stored, ring_.get(), ring_size());
  }
  if (opened > 0) {
    std::int64_t stored = opened + 3;  // their summaries; two R and the summary prepared
    if (next_) stored -= 2;
    std::int64_t sums = setup_->packed && !next_ ? 1 : 0;  // the prefix, where it is not an R
    if (closed() + blocks >= kGroup) {
      sums += 2 * kGroup;
      if (group_) sums -= static_cast<std::int64_t>(group_->rows.size());
      if (ahead_) sums -= static_cast<std::int64_t>(ahead_->rows.size());
    }
    if (closed() + blocks >= kWideFrom) {
      sums += 2 * wide;
      if (wide_) sums -= wide;  // its rows are with the groups or still here
      if (wide_ahead_) sums -= static_cast<std::int64_t>(wide_ahead_->rows.size());
    }
    if (!setup_->packed) stored = sums += stored;
    for (const auto& [kind, need] : {std::pair(Numbers::sums, sums), {Numbers::stored, stored}}) {
      while (static_cast<std::int64_t>(spares(kind).size()) < need) {
        spares(kind).push_back(allocate(kind));
      }
    }
  }
  own_all();
}

template <typename T>
void Stream<T>::own_all() {
  const auto own = [&](Numbers kind, Buffer& buffer, std::int64_t count) {
    if (!buffer || !shared(buffer)) return;
    Buffer copy = engine_->allocate(kind, count);
    engine_->copy(kind, copy.get(), buffer.get(), count);
    buffer = std::move(copy);
  };
  own(Numbers::stored, running_, setup_->size);
  own(Numbers::stored, summary_, setup_->size);
  own(Numbers::stored, ring_, ring_size());
  own(Numbers::sums, open_, open_size());
  if (next_) {
    own(Numbers::sums, next_->prefix, setup_->size);
    own(Numbers::stored, next_->started, setup_->size);
    own(Numbers::stored, next_->summary, setup_->size);
    next_->mix.to = {static_cast<T*>(next_->prefix.get())};
    next_->mix.clear = next_->summary.get();
  }
  for (auto* group : {&ahead_, &wide_ahead_}) {
    if (!*group) continue;
    for (std::size_t r = 0; r < (*group)->rows.size(); ++r) {
      own(Numbers::sums, (*group)->rows[r], setup_->size);
      (*group)->mix.to[r] = static_cast<T*>((*group)->rows[r].get());
    }
  }
  if (wide_) {
    for (Buffer& row : wide_->rows) own(Numbers::sums, row, setup_->size);
  }
}

template <typename T>
void Stream<T>::rewind_to_block(std::int64_t block) {
  if (block == closed() && fill_ == 0) return;
  closed_.resize(static_cast<std::size_t>(block));
  fill_ = base_ = 0;
  keep(Numbers::stored, std::move(running_));
  keep(Numbers::stored, std::move(summary_));
  if (next_) {
    keep(Numbers::sums, std::move(next_->prefix));
    keep(Numbers::stored, std::move(next_->started));
    keep(Numbers::stored, std::move(next_->summary));
    next_.reset();
  }
  ahead_.reset();
  wide_ahead_.reset();
  if (group_ && (group_->cutoff > block || block < group_->first)) group_.reset();
  if (wide_ && wide_->cutoff > block) wide_.reset();
}

template <typename T>
std::vector<float> Stream<T>::weights(std::int64_t row, std::int64_t column) const {
  const std::vector<float> all = setup_->mixing_row(row);
  std::vector<float> chosen;
  for (std::int64_t head = 0; head < setup_->mixing_heads(); ++head) {
    chosen.push_back(all[head * (row + 1) + column]);
  }
  return chosen;
}

// The mixture of blocks [begin, end) for a few rows, on top of a far one where there is one.
template <typename T>
Mix<T> Stream<T>::make_mix(typename Mix<T>::Kind kind, std::int64_t first_row, std::int64_t rows,
                           std::int64_t begin, std::int64_t end, const Group* far) const {
  static std::atomic<std::uint64_t> serial{0};
  // A far row is the first source where sums lie as summaries do.
  const std::int64_t heads = setup_->mixing_heads(), lead = far && !setup_->packed ? 1 : 0;
  const std::int64_t sources = end - begin + lead;
  Mix<T> mix;
  mix.serial = ++serial;
  mix.kind = kind;
  if (far) {
    const void* row = far->rows[first_row - far->first].get();
    if (lead > 0) mix.from.push_back(row);
    else mix.start = static_cast<const T*>(row);
  }
  for (std::int64_t b = begin; b < end; ++b) mix.from.push_back(closed_[b].get());
  mix.weights.resize(static_cast<std::size_t>(heads * rows * sources));
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::vector<float> row = setup_->mixing_row(first_row + r);
    for (std::int64_t head = 0; head < heads; ++head) {
      T* out = mix.weights.data() + (head * rows + r) * sources;
      if (lead > 0) *out = T(1);
      for (std::int64_t b = begin; b < end; ++b) {
        out[b - begin + lead] = row[head * (first_row + r + 1) + b];
      }
    }
  }
  const MixItems items = engine_->mix_items();
  const bool other = kind == Mix<T>::Kind::wide && items.wide_slab > 0;
  mix.slab = other ? items.wide_slab : items.slab;
  mix.chunk = other ? items.wide_chunk : items.chunk;
  mix.slabs_per_lane = ceil_div(setup_->width, mix.slab);
  mix.slabs = setup_->lanes * mix.slabs_per_lane;
  mix.chunks = std::max<std::int64_t>(1, ceil_div(sources, mix.chunk));
  mix.total = mix.slabs * mix.chunks;
  return mix;
}

template <typename T>
void Stream<T>::finish(Mix<T>& mix) {
  if (mix.left() == 0) return;
  const typename Engine<T>::Share share{&mix, mix.left()};
  engine_->run(nullptr, {&share, 1});
}

// Rows from `first` on, for as many as there are weights for.
template <typename T>
void Stream<T>::begin_group(std::int64_t first) {
  begin_wide(first);
  if (closed() < kGroup - 1) return;  // few summaries: mixing them anew is no more work
  const std::int64_t rows = std::min(kGroup, setup_->max_blocks().value_or(first + kGroup) - first);
  if (rows <= 0) return;
  // A row of the wide group is continued where it is.
  Buffer* begun = wide_ ? wide_->rows.data() + (first - wide_->first) : nullptr;
  if (begun && !std::all_of(begun, begun + rows, [](const Buffer& row) { return !!row; })) {
    begun = nullptr;
  }
  ahead_ = Group{.first = first, .cutoff = closed(), .rows = {}, .mix = {}};
  ahead_->mix = make_mix(Mix<T>::Kind::group, first, rows, begun ? wide_->cutoff : 0, closed());
  ahead_->mix.add = begun != nullptr;
  for (std::int64_t r = 0; r < rows; ++r) {
    ahead_->rows.push_back(begun ? std::move(begun[r]) : spare(Numbers::sums));
    ahead_->mix.to.push_back(static_cast<T*>(ahead_->rows.back().get()));
  }
}

// The wide group that the group from `first` on belongs to becomes the present one, and the one
// after it is begun.
template <typename T>
void Stream<T>::begin_wide(std::int64_t first) {
  const std::int64_t width = engine_->mix_items().wide_rows;
  if (width == 0) return;
  const std::int64_t start = first / width * width;
  if (wide_ && wide_->first != start) keep(wide_);
  if (wide_ahead_ && wide_ahead_->first == start) {
    finish(wide_ahead_->mix);
    wide_ = std::move(wide_ahead_);
    wide_->mix = {};
    wide_ahead_.reset();
  }
  if (first != start || closed() < kWideFrom) return;
  const std::int64_t next = start + width;
  const std::int64_t rows = std::min(width, setup_->max_blocks().value_or(next + width) - next);
  if (rows <= 0) return;
  wide_ahead_ = Group{.first = next, .cutoff = closed(), .rows = {}, .mix = {}};
  wide_ahead_->mix = make_mix(Mix<T>::Kind::wide, next, rows, 0, closed());
  for (std::int64_t r = 0; r < rows; ++r) {
    wide_ahead_->rows.push_back(spare(Numbers::sums));
    wide_ahead_->mix.to.push_back(static_cast<T*>(wide_ahead_->rows.back().get()));
  }
}

template <typename T>
void Stream<T>::prepare(std::int64_t row) {
  next_.reset();
  const auto limit = setup_->max_blocks();
  if (limit && row >= *limit) return;
  const std::int64_t first = row / kGroup * kGroup;
  if (ahead_ && ahead_->first == first) {
    finish(ahead_->mix);
    keep(group_);
    group_ = std::move(ahead_);
    group_->mix = {};
    ahead_.reset();
  }
  if (group_ && group_->first != first) group_.reset();
  if (!ahead_) begin_group(first + kGroup);
  const Group* far = group_ ? &*group_ : nullptr;
  next_ = Next{.prefix = spare(Numbers::sums),
               .started = setup_->packed ? spare(Numbers::stored) : nullptr,
               .summary = spare(Numbers::stored),
               .mix = {}};
  next_->mix = make_mix(Mix<T>::Kind::next, row, 1, far ? far->cutoff : 0, closed(), far);
  next_->mix.to = {static_cast<T*>(next_->prefix.get())};
  next_->mix.clear = next_->summary.get();
}

template <typename T>
void Stream<T>::open_block() {
  const std::int64_t i = closed();
  if (!next_) {  // the first block, or the first after going back
    prepare(i);
    finish(next_->mix);
    if (next_->started) {
      engine_->store(next_->started.get(), static_cast<const T*>(next_->prefix.get()),
                     setup_->size);
    }
  }
  running_ = std::move(next_->started ? next_->started : next_->prefix);
  keep(Numbers::sums, std::move(next_->prefix));
  summary_ = std::move(next_->summary);
  own_ = weights(i, i);
  base_ = 0;
  prepare(i + 1);
  if (next_) next_weight_ = weights(i + 1, i);
}

template <typename T>
void Stream<T>::close_block() {
  closed_.push_back(std::move(summary_));
  summary_.reset();
  keep(Numbers::stored, std::move(running_));
  fill_ = base_ = 0;
}

// Where R and S are rounded when they are rewritten, a few tokens are steps: these rewrite each
// number once for Setup::fold tokens.
template <typename T>
std::int64_t Stream<T>::piece(std::int64_t left) const {
  const std::int64_t count = std::min(setup_->block - fill_, left);
  const bool few = count < setup_->fold && count < setup_->block;
  return setup_->packed && setup_->problem.mask == Mask::causal && few ? 1 : count;
}

template <typename T>
void Stream<T>::read(const State::Inputs& inputs, const TensorView& o, void* stream) {
  const std::int64_t count = inputs.q.shape[1];
  if (count == 0) return;
  engine_->use(stream);
  reserve(count);
  for (std::int64_t first = 0; first < count;) {
    if (fill_ == 0) open_block();
    const std::int64_t part = piece(count - first);
    take(part, inputs, o, first);
    first += part;
    fill_ += part;
    if (part > 1 || setup_->problem.mask == Mask::block_causal) base_ = fill_;
    if (fill_ == setup_->block) close_block();
  }
}

// Tokens of the open block, with the shares of the mixtures that fall to them.
template <typename T>
void Stream<T>::take(std::int64_t count, const State::Inputs& inputs, const TensorView& o,
                     std::int64_t first) {
  const std::int64_t block = setup_->block;
  const bool closes = fill_ + count == block;
  std::array<typename Engine<T>::Share, 3> shares;
  std::size_t used = 0;
  const auto add = [&](Mix<T>& mix, std::int64_t items) {
    if (items > 0) shares[used++] = {&mix, items};
  };
  // What the closing block is added to has to be there by then.
  if (next_ && closes) finish(next_->mix);
  else if (next_) add(next_->mix, share_of(next_->mix.left(), count, block - 1 - fill_));
  if (ahead_) {  // needed when the last block before the group opens
    const std::int64_t left = (ahead_->first - 1) * block - tokens();
    add(ahead_->mix, share_of(ahead_->mix.left(), count, left));
  }
  if (wide_ahead_) {  // needed when its first group is begun
    const std::int64_t left = (wide_ahead_->first - kGroup - 1) * block - tokens();
    add(wide_ahead_->mix, share_of(wide_ahead_->mix.left(), count, left));
  }
  const Tokens<T> tokens{.inputs = &inputs,
                         .o = &o,
                         .first = first,
                         .count = count,
                         .fill = fill_,
                         .base = base_,
                         .running = running_.get(),
                         .summary = summary_.get(),
                         .ring = ring_.get(),
                         .open = static_cast<T*>(open_.get()),
                         .own = own_.data(),
                         .closes = closes,
                         .next = closes && next_ ? static_cast<T*>(next_->prefix.get()) : nullptr,
                         .started = next_ && next_->started ? next_->started.get()
                                    : next_                 ? next_->prefix.get()
                                                            : nullptr,
                         .next_weight = next_weight_.data()};
  engine_->run(&tokens, {shares.data(), used});
}

template class Stream<float>;
template class Stream<double>;

AnyStream make_stream(const std::shared_ptr<const Setup>& setup) {
  if (setup->problem.dtype == DType::f64) return Stream<double>(setup);
  return Stream<float>(setup);
}

}  // namespace mhla::streaming
