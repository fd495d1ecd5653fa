// What the kernels of a stream are told, by value.
#pragma once

#include <cstdint>

#include "mhla/cuda/device/feature_map.cuh"

namespace mhla::cuda::state {

inline constexpr int kThreads = 256;
inline constexpr int kFold = 16;          // Setup::fold on a device
inline constexpr int kMixRows = 8;        // most targets of a mixture
inline constexpr int kMixSources = 32;    // sources of an item
inline constexpr int kMixSlab = 1024;     // numbers of an item: four for each thread
inline constexpr int kMostSlices = 256;   // of at least 16 columns
inline constexpr int kWidestKey = 512;    // dk: what shared memory holds
inline constexpr int kChunkColumns = 32;  // of a thread block that reads several tokens

// Rows of [B, T, H, D]: token `first` of the call.
struct Rows {
  void* data;
  std::int64_t batch, token, head;  // strides
};

struct StepArgs {
  Rows q, k, v, q_den, k_den, o;
  float *running, *summary, *open, *next;
  const float* weights;    // m_ii of each mixing head, then what `next` gets of the summary
  float own, next_weight;  // the same when one matrix serves all heads
  Map map;
  float scale, eps;
  int heads, per_head;
  int dk, dv, row, key, den_at, den_width;
  std::int64_t width, open_width;
  int ring_k_at, ring_v_at, q_at;
  int slice, slices;
  int normalizer;  // as in Normalizer
  int separate, closes, block;
  int columns;  // of a thread block
  int column_blocks;
  int blocks;  // thread blocks that read tokens; those behind them mix
  int fill, base;
  unsigned char phase[kMostSlices];  // when a slice takes up its tokens: fill % kFold
  // several tokens
  int count, block_causal, tokens_at_once;
};

struct MixArgs {
  const float* const* from;  // [sources]
  const float* weights;      // [mixing heads, rows, sources]
  float* to[kMixRows];
  float* clear;
  std::int64_t width;
  int rows, sources, slabs_per_lane;
  int heads, per_head;
  int chunk;         // all items of a launch belong to one chunk of sources
  int first, count;  // slabs
};

struct StepCall {
  StepArgs step;
  MixArgs mix[2];
};

// One function for each storage type.
enum class Storage { f32, bf16, f16 };
void launch_step(Storage storage, const StepCall& call, void* stream);
void launch_tokens(Storage storage, const StepArgs& args, void* stream);
void launch_mix(const MixArgs& args, void* stream);

}  // namespace mhla::cuda::state
