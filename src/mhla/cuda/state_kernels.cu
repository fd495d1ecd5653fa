// Launches of the kernels of a stream.
#include <algorithm>

#include "mhla/cuda/runtime.h"
#include "mhla/cuda/state_step.cuh"
#include "mhla/cuda/state_tokens.cuh"
#include "mhla/cuda/state_usual_tokens.cuh"

namespace mhla::cuda::state {
namespace {

template <typename F>
void with_storage(Storage storage, F&& f) {
  switch (storage) {
    case Storage::f32: return f(float{}, float{});
    case Storage::bf16: return f(bf16{}, float{});
    case Storage::f16: return f(f16{}, float{});
    case Storage::packed: return f(bf16{}, bf16{});
  }
  fail(ErrorCode::internal, "state", "unknown storage type");
}

template <int kColumns>
void launch_usual(const StepCall& call, bool overlap, void* stream) {
  auto* kernel = call.step.closes ? usual_kernel<kColumns, true> : usual_kernel<kColumns, false>;
  allow_shared(reinterpret_cast<const void*>(kernel), kUsualBytes<kColumns>);
  launch(kernel, {.x = call.step.blocks}, kUsualThreads, kUsualBytes<kColumns>, stream, call,
         overlap);
}

}  // namespace

int step_shared(const StepArgs& args) {
  return kMixBytes + (args.packed ? step_bytes<bf16>(args.key, args.columns)
                                  : step_bytes<float>(args.key, args.columns));
}

int tokens_shared(const StepArgs& a) {
  const int n = a.tokens_at_once;
  const int floats = a.dk * kChunkColumns + n * kChunkColumns + 2 * n * (a.key + 1) + n * (n + 1) +
                     2 * a.key + n;
  return floats * 4;
}

void launch_step(Storage storage, const StepCall& call, bool overlap, void* stream) {
  if (call.step.usual) {
    switch (call.step.columns) {
      case 16: return launch_usual<16>(call, overlap, stream);
      case 32: return launch_usual<32>(call, overlap, stream);
      case 64: return launch_usual<64>(call, overlap, stream);
      case 128: return launch_usual<128>(call, overlap, stream);
      case 256: return launch_usual<256>(call, overlap, stream);
    }
    fail(ErrorCode::internal, "state", "no kernel for ", call.step.columns, " columns");
  }
  with_storage(storage, [&](auto element, auto stored) {
    auto* kernel = step_kernel<decltype(element), decltype(stored)>;
    const int shared = step_shared(call.step);
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    launch(kernel, {.x = call.step.blocks}, kThreads + 32 * kMixWarps, shared, stream, call,
           overlap);
  });
}

void launch_tokens(Storage storage, const StepArgs& args, void* stream) {
  if (args.usual) {
    constexpr int kBytes = sizeof(UsualTokensMemory);
    allow_shared(reinterpret_cast<const void*>(usual_tokens_kernel), kBytes);
    launch(usual_tokens_kernel, {.x = args.blocks}, kThreads, kBytes, stream, args);
    return;
  }
  with_storage(storage, [&](auto element, auto stored) {
    auto* kernel = tokens_kernel<decltype(element), decltype(stored)>;
    const int shared = tokens_shared(args);
    allow_shared(reinterpret_cast<const void*>(kernel), shared);
    launch(kernel, {.x = args.blocks}, kThreads, shared, stream, args);
  });
}

void launch_mix(bool packed, const MixArgs& args, void* stream) {
  // A piece a warp while there are few: each is a chain of loads.
  constexpr std::int64_t kMostBlocks = 132 * 10;
  const std::int64_t pieces = static_cast<std::int64_t>(args.count) * kMixPieces *
                              ((args.rows + kMixRows - 1) / kMixRows);
  const std::int64_t grid = std::min(kMostBlocks, (pieces + kMixWarps - 1) / kMixWarps);
  auto* kernel = packed ? mix_kernel<bf16> : mix_kernel<float>;
  allow_shared(reinterpret_cast<const void*>(kernel), kMixBytes);
  launch(kernel, {.x = grid}, 32 * kMixWarps, kMixBytes, stream, args);
}

void launch_store(const StoreArgs& args, void* stream) {
  const std::int64_t each = std::int64_t{kStoreThreads} * 4;
  launch(store_kernel, {.x = (args.count + each - 1) / each}, kStoreThreads, 0, stream, args);
}

}  // namespace mhla::cuda::state
