// The course of a stream: closed block summaries, the block being filled, and the mixtures that the
// next blocks will start from, prepared bit by bit while this one is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "mhla/core/state_engine.h"
#include "mhla/core/state_setup.h"
#include "mhla/state.h"

namespace mhla::streaming {

// What a file says about the block being filled, on the host, without padding.
template <typename T>
struct OpenBlock {
  std::int64_t fill = 0;   // tokens read so far, fewer than a whole block; 0: not opened yet
  std::int64_t base = 0;   // see Setup::level
  std::vector<T> running;  // [lanes, dk, dv], then its denominator [lanes, den_width]
  std::vector<T> s;        // [lanes, dk, dv]
  std::vector<T> z;        // [lanes, dk]; empty without a normaliser
  std::vector<T> q;        // [fill, lanes, dk]: phi(q_den); only for shared_position
  std::vector<T> k, v;     // [pending, lanes, dk] and dv: the last tokens, see pending()

  // How many tokens some slice may not have taken up.
  std::int64_t pending(const Setup& setup) const {
    return fill - base < setup.fold - 1 ? fill - base : setup.fold - 1;
  }
};

// T is float for f32, bf16 and f16 problems, double for f64. Copies share what does not change.
template <typename T>
class Stream {
 public:
  explicit Stream(std::shared_ptr<const Setup> setup);
  Stream(const Stream& other);
  Stream(Stream&&) noexcept = default;
  Stream& operator=(Stream&&) noexcept = default;

  // Views were checked; the mixing reaches the last token.
  void read(const State::Inputs& inputs, const TensorView& o, void* stream);
  void rewind_to_block(std::int64_t block);  // at most closed()

  std::int64_t tokens() const { return closed() * setup_->block + fill_; }
  std::int64_t closed() const { return static_cast<std::int64_t>(closed_.size()); }
  const void* summary(std::int64_t block) const { return closed_[block].get(); }
  std::size_t bytes() const;

  // For files. A summary is s [lanes, dk, dv], then den [lanes, den_width].
  std::vector<T> export_summary(std::int64_t block) const;
  OpenBlock<T> export_open() const;
  void import_summary(const T* s, const T* den);
  void import_open(const OpenBlock<T>& open);  // an empty `running` follows from the rest

 private:
  // The first row of a group of query blocks, and for each row the mixture of the blocks before
  // `cutoff`. The rows of a wide group go over to the groups in it, which add the blocks since
  // then.
  struct Group {
    std::int64_t first = 0, cutoff = 0;
    std::vector<Buffer> rows;  // sums
    Mix<T> mix;
  };
  // The prefix of the next block while it is mixed; the block being filled is added when it closes,
  // into `started`, which is null where that is the prefix's own memory.
  struct Next {
    Buffer prefix, started, summary;
    Mix<T> mix;
  };

  void reserve(std::int64_t count);
  void open_block();
  void close_block();
  void prepare(std::int64_t row);  // begins next_ and, at the edge of a group, ahead_
  void begin_group(std::int64_t first);
  void begin_wide(std::int64_t first);
  void keep(std::optional<Group>& group);
  Mix<T> make_mix(typename Mix<T>::Kind kind, std::int64_t first_row, std::int64_t rows,
                  std::int64_t begin, std::int64_t end, const Group* far = nullptr) const;
  void finish(Mix<T>& mix);
  std::int64_t piece(std::int64_t left) const;  // tokens of the open block to read at once
  void take(std::int64_t count, const State::Inputs& inputs, const TensorView& o,
            std::int64_t first);
  void own_all();  // nobody else refers to what is written
  std::vector<float> weights(std::int64_t row, std::int64_t column) const;
  Buffer allocate(Numbers kind) { return engine_->allocate(kind, setup_->size); }
  std::vector<Buffer>& spares(Numbers kind) {
    return spares_[setup_->packed && kind == Numbers::stored ? 1 : 0];
  }
  Buffer spare(Numbers kind);
  void keep(Numbers kind, Buffer&& buffer);
  std::int64_t open_size() const { return setup_->lanes * setup_->open_width; }
  std::int64_t ring_size() const { return setup_->lanes * setup_->ring_width; }

  std::shared_ptr<const Setup> setup_;
  std::unique_ptr<Engine<T>> engine_;
  std::vector<Buffer> closed_;  // stored
  std::int64_t fill_ = 0, base_ = 0;
  Buffer running_, summary_, ring_;  // stored
  Buffer open_;                      // sums
  std::vector<float> own_, next_weight_;
  std::optional<Next> next_;
  std::optional<Group> group_, ahead_;  // of the rows being read, and of those after them
  std::optional<Group> wide_, wide_ahead_;
  std::vector<Buffer> spares_[2];  // of each kind of Numbers; in the first where they are the same
};

extern template class Stream<float>;
extern template class Stream<double>;

using AnyStream = std::variant<Stream<float>, Stream<double>>;

// An empty stream in the precision of the problem's dtype.
AnyStream make_stream(const std::shared_ptr<const Setup>& setup);

}  // namespace mhla::streaming
