#include "train/feed.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tasks/task.h"

namespace mhla::train {

namespace {

constexpr std::size_t kBatchesAhead = 3;

// `later` goes on where `earlier` stands now.
void follow(const c10::Stream& later, const c10::Stream& earlier) {
  c10::Event reached(earlier.device_type());
  reached.record(earlier);
  reached.block(later);
}

}  // namespace

ComputingStream::ComputingStream(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl devices(device.type());
  const c10::Stream own = devices.getStreamFromGlobalPool(device);
  before_ = devices.exchangeStream(own);
  follow(own, *before_);
}

ComputingStream::~ComputingStream() {
  if (!before_) return;
  const c10::impl::VirtualGuardImpl devices(before_->device_type());
  const c10::Stream own = devices.exchangeStream(*before_);
  follow(*before_, own);
}

Feed::Feed(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl devices(device.type());
  stream_ = devices.getStreamFromGlobalPool(device);
  copied_.emplace(device.type());
}

void Feed::prefetch(data::Loader& loader, const Prepare& prepare) {
  if (ahead_) return;
  if (!stream_) {
    ahead_ = prepare(loader.next());
    return;
  }
  const data::Batch batch = loader.next();
  const c10::StreamGuard guard(*stream_);
  ahead_ = prepare(tasks::to_device(batch, device_));
  copied_->record(*stream_);
}

data::Batch Feed::next(data::Loader& loader, const Prepare& prepare) {
  prefetch(loader, prepare);
  data::Batch batch = std::move(*ahead_);
  ahead_.reset();
  if (stream_) {
    const c10::impl::VirtualGuardImpl devices(device_.type());
    const c10::Stream computing = devices.getStream(device_);
    copied_->block(computing);
    // Their memory belongs to the stream of the copies, which must not reuse it too early.
    for (const auto& [name, tensor] : batch.tensors) tensor.record_stream(computing);
    taken_.emplace_back(device_.type());
    taken_.back().record(computing);
    if (taken_.size() > kBatchesAhead) {
      taken_.front().synchronize();
      taken_.pop_front();
    }
  }
  return batch;
}

}  // namespace mhla::train
