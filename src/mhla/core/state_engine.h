// The work of a stream as an engine does it, on the CPU or on a device: tokens of the open block,
// and mixtures of closed summaries, a few items at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "mhla/core/state_setup.h"
#include "mhla/state.h"

namespace mhla::streaming {

// Numbers where the engine works.
using Buffer = std::shared_ptr<void>;

// How they lie there: sums are T; what is stored (summaries, R, the ring) is T too, or bf16 with
// Setup::packed.
enum class Numbers { sums, stored };

// How an engine cuts a mixture into items: `slab` numbers of one lane times `chunk` sources.
struct MixItems {
  std::int64_t slab = 0, chunk = 0;
  // Slab after slab keeps the targets in a cache; chunk after chunk gives many items of different
  // slabs at once.
  bool slab_major = true;
  std::int64_t wide_rows = 0;                  // of a wide group (Stream); 0: there are none
  std::int64_t wide_slab = 0, wide_chunk = 0;  // of its items; 0: as of the others
};

// to[r] = sum over s of weights[head][r][s] * from[s], one multiply-add after another in the order
// of s, so that the bits do not depend on how the work was cut.
template <typename T>
struct Mix {
  std::vector<T*> to;             // [rows]
  std::vector<const void*> from;  // [sources], stored
  std::vector<T> weights;         // [mixing heads, rows, sources]
  const T* start = nullptr;       // a sum that the only row begins with
  void* clear = nullptr;          // stored; set to zero on the way: the next block's summary
  bool add = false;               // to what the targets hold
  enum class Kind { next, group, wide } kind = Kind::next;

  std::int64_t slab = 0, chunk = 0;  // of an item
  std::int64_t slabs_per_lane = 0, slabs = 0, chunks = 0;
  std::int64_t done = 0, total = 0;  // items
  std::uint64_t serial = 0;  // differs between mixtures: an engine may keep tables of the last one

  std::int64_t left() const { return total - done; }
};

// Tokens [first, first + count) of a piece, all inside the open block.
template <typename T>
struct Tokens {
  const State::Inputs* inputs;
  const TensorView* o;
  std::int64_t first, count;
  std::int64_t fill, base;  // see Setup::level, before these tokens
  void* running;            // stored: R = P_i + m_ii * (what the slices have taken up)
  void* summary;            // stored: S, the sum of the same tokens; whole once the block closes
  void* ring;               // stored: Setup::ring_width numbers a lane
  T* open;                  // Setup::open_width numbers a lane
  const float* own;         // m_ii, one per mixing head
  bool closes;              // the last token is the block's last
  const T* next;            // if so, and unless null, the next block's R is next + next_weight * S
  void* started;            // stored: that R; the memory of `next` unless packed
  const float* next_weight;
};

template <typename T>
class Engine {
 public:
  virtual ~Engine() = default;
  virtual std::unique_ptr<Engine> clone() const = 0;  // for a branch; shares nothing that changes

  virtual MixItems mix_items() const = 0;
  virtual Buffer allocate(Numbers kind, std::int64_t count) = 0;  // not initialised
  // In the order of the calls, like everything that runs.
  virtual void clear(Numbers kind, void* data, std::int64_t count) = 0;
  virtual void copy(Numbers kind, void* to, const void* from, std::int64_t count) = 0;
  virtual void upload(Numbers kind, void* to, const T* host, std::int64_t count) = 0;
  virtual void download(Numbers kind, T* host, const void* from, std::int64_t count) = 0;  // waits
  virtual void store(void* stored, const T* sums, std::int64_t count) = 0;

  // The stream of the calls that follow; the CPU has none.
  virtual void use(void* stream) = 0;
  // Nothing in one call depends on anything else in it. `items` of each mixture are done, and
  // counted in Mix::done.
  struct Share {
    Mix<T>* mix;
    std::int64_t items;
  };
  virtual void run(const Tokens<T>* tokens, std::span<const Share> shares) = 0;
};

std::unique_ptr<Engine<float>> make_engine_f32(const std::shared_ptr<const Setup>& setup);
std::unique_ptr<Engine<double>> make_engine_f64(const std::shared_ptr<const Setup>& setup);

// What serves streams on a device; throws where there is none (no_cuda.cpp).
std::unique_ptr<Engine<float>> make_cuda_engine(const std::shared_ptr<const Setup>& setup);

}  // namespace mhla::streaming
