// The arithmetic of a stream: closed block summaries, their mixed prefix, the block being filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "mhla/core/state_setup.h"
#include "mhla/state.h"

namespace mhla::streaming {

// The sums of one closed block, or a mixture of such sums. A lane is one (batch, head).
template <typename T>
struct Summary {
  std::vector<T> s;    // [lanes, dk, dv]: S_b, the sum of phi(k) v^T
  std::vector<T> den;  // exact: z_b, the sum of phi(k_den) [lanes, dk]; none: empty;
                       // shared_position: r_b, phi(q_den_w) . z_b for each position w [lanes, C]
};

template <typename T>
struct OpenBlock {
  std::int64_t fill = 0;  // tokens read so far, fewer than a whole block; 0: not opened yet
  std::vector<T> s;       // [lanes, dk, dv]
  std::vector<T> z;       // [lanes, dk]; empty without a normaliser
  std::vector<T> q;       // [fill, lanes, dk]: phi(q_den), kept for r_b; only for shared_position
};

// T is float for f32, bf16 and f16 problems, double for f64. Copies share the closed summaries.
template <typename T>
class Stream {
 public:
  using Closed = std::vector<std::shared_ptr<const Summary<T>>>;

  explicit Stream(std::shared_ptr<const Setup> setup);
  Stream(std::shared_ptr<const Setup> setup, Closed closed, OpenBlock<T> open);

  // Views were checked; the mixing reaches the last token.
  void read(const State::Inputs& inputs, const TensorView& o);
  void rewind_to_block(std::int64_t block);  // at most closed().size()

  std::int64_t tokens() const;
  std::size_t bytes() const;
  const Closed& closed() const { return closed_; }
  const OpenBlock<T>& open() const { return open_; }

 private:
  struct Chunk;  // a few tokens of one lane, features applied

  void open_block();
  void close_block();
  // Tokens [first, first + count) of a piece, all inside the open block.
  void read_part(const State::Inputs& inputs, const TensorView& o, std::int64_t first,
                 std::int64_t count);
  void gather(const State::Inputs& inputs, std::int64_t lane, Chunk& chunk) const;
  void absorb(const Chunk& chunk, std::int64_t lane);
  void write_out(const Chunk& chunk, std::int64_t lane, const TensorView& o) const;

  std::shared_ptr<const Setup> setup_;
  Closed closed_;
  OpenBlock<T> open_;
  std::shared_ptr<const Summary<T>> prefix_;  // P_i = sum_{b<i} m_ib S_b; null in block 0
  std::vector<T> own_;                        // m_ii, one per mixing head
};

extern template class Stream<float>;
extern template class Stream<double>;

using AnyStream = std::variant<Stream<float>, Stream<double>>;

// An empty stream in the precision of the problem's dtype.
AnyStream make_stream(const std::shared_ptr<const Setup>& setup);

}  // namespace mhla::streaming
