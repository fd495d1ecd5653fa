// Hooks, buffers, and the order in which they are sent.
#include "train/distributed/buckets.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace mhla::train {
namespace {

// Large enough to be worth a message, small enough that several overlap the backward pass.
constexpr std::int64_t kBucketBytes = 25 << 20;
constexpr std::int64_t kFirstBucketBytes = 1 << 20;  // so that the network starts early

struct Slot {
  at::Tensor parameter;
  std::size_t bucket = 0;
  std::int64_t offset = 0;
  bool sent = false;
};

struct Bucket {
  at::Tensor values;  // the gradients one after the other
  std::int64_t count = 0, waiting = 0;
  c10::intrusive_ptr<c10d::Work> work;
};

}  // namespace

struct GradientBuckets::State {
  c10::intrusive_ptr<c10d::Backend> group;
  std::vector<Slot> slots;
  std::vector<Bucket> buckets;
  std::size_t next = 0;  // buckets before it are on their way; the same order in every process
  bool expecting = false;

  at::Tensor room(const Slot& slot) const {
    return buckets[slot.bucket]
        .values.narrow(0, slot.offset, slot.parameter.numel())
        .view(slot.parameter.sizes());
  }

  void gradient_is_ready(std::size_t i) {
    Slot& slot = slots[i];
    if (!expecting || slot.sent) return;
    const at::NoGradGuard no_gradient;
    room(slot).copy_(slot.parameter.grad()).div_(group->getSize());
    slot.sent = true;
    --buckets[slot.bucket].waiting;
    send_full_buckets();
  }

  void send_full_buckets() {
    while (next < buckets.size() && buckets[next].waiting == 0) {
      std::vector<at::Tensor> tensors = {buckets[next].values};
      buckets[next].work = group->allreduce(tensors, c10d::AllreduceOptions());
      ++next;
    }
  }

  void expect() {
    expecting = true;
    next = 0;
    for (Bucket& bucket : buckets) bucket.waiting = bucket.count;
    for (Slot& slot : slots) slot.sent = false;
  }
};

namespace {

// NOTE: the hook is kept by the parameter, which may outlive the buckets.
template <typename State>
class ReadyHook : public torch::autograd::PostAccumulateGradHook {
 public:
  ReadyHook(std::weak_ptr<State> state, std::size_t slot) : state_(std::move(state)), slot_(slot) {}
  void operator()(const torch::autograd::Variable&) override {
    if (const auto state = state_.lock()) state->gradient_is_ready(slot_);
  }

 private:
  std::weak_ptr<State> state_;
  std::size_t slot_;
};

}  // namespace

GradientBuckets::GradientBuckets(c10::intrusive_ptr<c10d::Backend> group,
                                 const std::vector<at::Tensor>& parameters)
    : state_(std::make_shared<State>()) {
  state_->group = std::move(group);
  std::map<std::pair<at::ScalarType, std::string>, std::size_t> open;  // the bucket being filled
  std::vector<std::int64_t> sizes;
  for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
    const auto kind = std::make_pair(parameter->scalar_type(), parameter->device().str());
    const auto bytes = static_cast<std::int64_t>(parameter->nbytes());
    const auto found = open.find(kind);
    const std::int64_t most = sizes.size() > 1 ? kBucketBytes : kFirstBucketBytes;
    const bool fits = found != open.end() &&
                      sizes[found->second] * parameter->element_size() + bytes <= most;
    const std::size_t bucket = fits ? found->second : sizes.size();
    if (!fits) {
      open[kind] = bucket;
      sizes.push_back(0);
      state_->buckets.emplace_back();
      state_->buckets.back().values = *parameter;  // for its options, see below
    }
    state_->slots.push_back({.parameter = *parameter, .bucket = bucket, .offset = sizes[bucket]});
    sizes[bucket] += parameter->numel();
    ++state_->buckets[bucket].count;
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    at::Tensor& values = state_->buckets[i].values;
    values = at::zeros({sizes[i]}, values.options().requires_grad(false));
  }
  for (std::size_t i = 0; i < state_->slots.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(state_->slots[i].parameter,
                                                   std::make_unique<ReadyHook<State>>(state_, i));
  }
}

GradientBuckets::~GradientBuckets() {
  for (const Slot& slot : state_->slots) {
    torch::autograd::impl::set_post_acc_grad_hooks(slot.parameter, nullptr);
  }
}

void GradientBuckets::expect() { state_->expect(); }

void GradientBuckets::finish() {
  const at::NoGradGuard no_gradient;
  if (!state_->expecting) state_->expect();
  for (std::size_t i = 0; i < state_->slots.size(); ++i) {
    Slot& slot = state_->slots[i];
    if (slot.sent) continue;
    if (slot.parameter.grad().defined()) {
      state_->gradient_is_ready(i);
    } else {
      state_->room(slot).zero_();
      slot.sent = true;
      --state_->buckets[slot.bucket].waiting;
    }
  }
  state_->send_full_buckets();
  state_->expecting = false;
  for (Bucket& bucket : state_->buckets) bucket.work->wait();
  for (const Slot& slot : state_->slots) {
    at::Tensor gradient = slot.parameter.grad();
    if (gradient.defined()) gradient.copy_(state_->room(slot));
  }
}

}  // namespace mhla::train
