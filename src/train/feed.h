// The stream that a GPU computes on, and batches copied there while the step before still computes.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <deque>
#include <functional>
#include <optional>

#include "data/loader.h"

namespace mhla::train {

// While it lives, this thread computes on a stream of its own: the default one cannot be recorded.
// Does nothing on a CPU.
class ComputingStream {
 public:
  explicit ComputingStream(c10::Device device);
  ComputingStream(const ComputingStream&) = delete;
  ComputingStream& operator=(const ComputingStream&) = delete;
  ~ComputingStream();

 private:
  std::optional<c10::Stream> before_;
};

class Feed {
 public:
  // What is done to a batch once it is on the device: on the stream of the copies.
  using Prepare = std::function<data::Batch(const data::Batch&)>;

  explicit Feed(c10::Device device);

  // The batch that prefetch() began with, or else the next of the loader.
  data::Batch next(data::Loader& loader, const Prepare& prepare);
  // Waits for the loader, not for the device; to be called once a step is on its way.
  void prefetch(data::Loader& loader, const Prepare& prepare);
  void forget() { ahead_.reset(); }  // before the loader is moved elsewhere

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;  // of the copies; none on a CPU
  std::optional<c10::Event> copied_;
  // Where the computing stream stood at the last calls of next(): the host runs no further ahead,
  // so that batches do not pile up.
  std::deque<c10::Event> taken_;
  std::optional<data::Batch> ahead_;
};

}  // namespace mhla::train
