// Launches of the kernels of a stream.
#include "mhla/cuda/runtime.h"
#include "mhla/cuda/state_step.cuh"
#include "mhla/cuda/state_tokens.cuh"

namespace mhla::cuda::state {
namespace {

template <typename F>
void with_storage(Storage storage, F&& f) {
  switch (storage) {
    case Storage::f32: return f(float{});
    case Storage::bf16: return f(bf16{});
    case Storage::f16: return f(f16{});
  }
  fail(ErrorCode::internal, "state", "unknown storage type");
}

int step_shared(const StepArgs& a) {
  const int floats = (3 + kFold) * a.key + kFold * a.columns + 2 * kFold + 4 * kThreads;
  return floats * 4;
}

int tokens_shared(const StepArgs& a) {
  const int n = a.tokens_at_once;
  const int floats = a.dk * kChunkColumns + n * kChunkColumns + 2 * n * (a.key + 1) + n * (n + 1) +
                     2 * a.key + n;
  return floats * 4;
}

}  // namespace

void launch_step(Storage storage, const StepCall& call, void* stream) {
  const std::int64_t grid = call.step.blocks + call.mix[0].count + call.mix[1].count;
  with_storage(storage, [&](auto tag) {
    auto* kernel = step_kernel<decltype(tag)>;
    const int shared = step_shared(call.step);
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    launch(kernel, {.x = grid}, kThreads, shared, stream, call, true);
  });
}

void launch_tokens(Storage storage, const StepArgs& args, void* stream) {
  with_storage(storage, [&](auto tag) {
    auto* kernel = tokens_kernel<decltype(tag)>;
    const int shared = tokens_shared(args);
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    launch(kernel, {.x = args.blocks}, kThreads, shared, stream, args);
  });
}

void launch_mix(const MixArgs& args, void* stream) {
  launch(mix_kernel, {.x = args.count}, kThreads, 0, stream, args);
}

}  // namespace mhla::cuda::state
