#include "train/feed.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tasks/task.h"

namespace mhla::train {

Feed::Feed(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl devices(device.type());
  stream_ = devices.getStreamFromGlobalPool(device);
  copied_.emplace(device.type());
}

void Feed::prefetch(data::Loader& loader) {
  if (ahead_) return;
  if (!stream_) {
    ahead_ = loader.next();
    return;
  }
  const data::Batch batch = loader.next();
  const c10::StreamGuard guard(*stream_);
  ahead_ = tasks::to_device(batch, device_);
  copied_->record(*stream_);
}

data::Batch Feed::next(data::Loader& loader) {
  prefetch(loader);
  data::Batch batch = std::move(*ahead_);
  ahead_.reset();
  if (stream_) {
    const c10::impl::VirtualGuardImpl devices(device_.type());
    const c10::Stream computing = devices.getStream(device_);
    copied_->block(computing);
    // Their memory belongs to the stream of the copies, which must not reuse it too early.
    for (const auto& [name, tensor] : batch.tensors) tensor.record_stream(computing);
  }
  return batch;
}

}  // namespace mhla::train
