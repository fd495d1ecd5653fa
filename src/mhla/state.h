// The streaming form of a causal problem: read a prompt in pieces, write token by token, go back,
// branch, save. Closed block summaries never change, so branches share them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "mhla/mixing.h"
#include "mhla/problem.h"
#include "mhla/tensor_view.h"

namespace mhla {

// Needs a causal or block_causal mask and a 1-D layout of equal blocks; the length in the layout
// does not bound the stream. A mixing matrix of M rows serves M blocks; a ToeplitzMixing has no
// end. Prefill, step and the one-shot operator agree to rounding.
//
// On a CUDA device all sums live in its memory. Calls only put work on the stream and return; calls
// of one state belong on one stream, or on streams that the caller orders, and a fork begins behind
// the last call of its origin. Memory is taken when a block opens, for several blocks at a time; no
// other step allocates. Saving waits for the device. Summaries of bf16 streams are stored as bf16
// there (blocks of up to 128 tokens, dk from 32 on).
class State {
 public:
  State(const Problem& problem, const MixingMatrix& mixing);
  State(const Problem& problem, const ToeplitzMixing& mixing);
  State(State&&) noexcept;
  State& operator=(State&&) noexcept;
  ~State();

  // Inputs of one piece. q_den and k_den with Problem::separate_denominator.
  struct Inputs {
    TensorView q;  // [B, T, H, dk]
    TensorView k;  // [B, T, H, dk]
    TensorView v;  // [B, T, H, dv]
    TensorView q_den = {};
    TensorView k_den = {};
  };

  // Any number of tokens, any number of times; block_causal takes whole blocks.
  void prefill(const Inputs& inputs, const TensorView& o,
               Stream stream = nullptr);  // [B, T, H, dv]
  void prefill(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& o,
               Stream stream = nullptr);
  // One token: T = 1. Every step does a share of the mixing that later blocks need, so that none
  // costs much more than another; the share grows slowly with the number of closed blocks.
  void step(const Inputs& inputs, const TensorView& o, Stream stream = nullptr);
  void step(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& o,
            Stream stream = nullptr);

  State fork() const;                // shares closed block summaries
  void rewind(std::int64_t tokens);  // to a block edge at or before the present position
  std::int64_t tokens() const;       // read so far
  std::int64_t block_size() const;
  std::size_t bytes() const;       // memory this state refers to, shared parts included
  const Problem& problem() const;  // its layout is one block: a stream has no length

  // A versioned, checksummed file; written to a temporary name first, then renamed.
  void save(const std::string& path) const;
  static State load(const std::string& path);

  // The same as bytes in memory: what save writes and load reads.
  std::string serialize() const;
  static State deserialize(const void* data, std::size_t bytes);

 private:
  struct Impl;
  explicit State(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace mhla
