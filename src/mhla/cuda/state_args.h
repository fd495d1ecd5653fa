// What the kernels of a stream are told, by value.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "mhla/cuda/device/feature_map.cuh"

namespace mhla::cuda::state {

inline constexpr int kThreads = 256;      // that read tokens
inline constexpr int kFold = 16;          // Setup::fold on a device
inline constexpr int kMixWarps = 2;       // of a thread block
inline constexpr int kMixRows = 8;        // most rows of a warp: their sums are in its registers
inline constexpr int kMixMostRows = 32;   // most targets of a mixture
inline constexpr int kMixSources = 128;   // sources of an item: the sums are written once for them
inline constexpr int kMixShort = 16;      // sources of a row that a warp has room for twice
inline constexpr int kMixSlab = 1024;     // numbers of an item
inline constexpr int kMixPieces = 8;      // of a slab, for a warp each
inline constexpr int kMixtures = 3;       // of a step: of the next row, of a group, of a wide group
inline constexpr int kMostSlices = 256;   // of at least 16 columns
inline constexpr int kWidestKey = 512;    // dk: what shared memory holds
inline constexpr int kChunkColumns = 32;  // of a thread block that reads several tokens
inline constexpr int kUsualColumns = 64;  // of one that reads several tokens of usual heads

// Heads that language models have, which a kernel of their own serves (state_usual.cuh). Their
// matrices lie in fragments of 16 rows by 16 columns, one after the other down the rows of a panel
// of 16 columns, and each as the first operand of a product R^T q: eight numbers for each lane.
inline constexpr int kUsualKey = 128, kUsualRow = 256, kUsualSlice = 16, kFragment = 256;
__host__ __device__ constexpr int usual_at(int row, int column) {
  const int fragment = column / 16 * (kUsualKey / 16) + row / 16;
  const int lane = column % 8 * 4 + row % 8 / 2;
  const int word = row % 16 / 8 * 2 + column % 16 / 8;
  return fragment * kFragment + lane * 8 + word * 2 + row % 2;
}

// Rows of [B, T, H, D]: token `first` of the call.
struct Rows {
  void* data;
  std::int64_t batch, token, head;  // strides
};

struct StepArgs {
  Rows q, k, v, q_den, k_den, o;
  void *running, *summary, *ring, *started;  // as stored: see Tokens
  float* open;
  const float* next;
  int packed;              // bf16 is stored, else f32
  int usual;               // matrices lie in fragments, else row by row
  const float* weights;    // m_ii of each mixing head, then what `next` gets of the summary
  float own, next_weight;  // the same when one matrix serves all heads
  Map map;
  float scale, eps;
  int heads, per_head;
  int dk, dv, row, key, den_at, den_width;
  std::int64_t width, open_width;
  std::int64_t ring_width;
  int ring_v_at, q_at;
  int slice, slices;
  int normalizer;  // as in Normalizer
  int separate, closes, block;
  int columns;  // of a thread block
  int column_blocks;
  int blocks;  // thread blocks that read tokens; those behind them mix
  int fill, base;
  int due_first, due_last;           // the slices that take up their tokens
  unsigned char phase[kMostSlices];  // when a slice takes up its tokens: fill % kFold
  // several tokens
  int count, block_causal, tokens_at_once;
};

struct MixArgs {
  const void* const* from;  // [sources], as stored
  const float* weights;     // [mixing heads, rows, sources]
  float* to[kMixMostRows];
  const float* start;  // what the only row begins with, or null
  void* clear;         // as stored
  std::int64_t width;
  int rows, sources, slabs_per_lane;
  int add;  // to what is there
  int heads, per_head;
  int chunk;         // all items of a launch belong to one chunk of sources
  int first, count;  // slabs
};

struct StepCall {
  StepArgs step;
  int mixtures;
  MixArgs mix[kMixtures];
};

// Sums of mixtures rounded to what is stored: R where no block has closed into it.
struct StoreArgs {
  void* stored;
  const float* sums;
  std::int64_t count;  // a multiple of 4
};

// One function for each storage type; packed: bf16 that is stored as such.
enum class Storage { f32, bf16, f16, packed };
// Bytes
int step_shared(const StepArgs& args);
int tokens_shared(const StepArgs& args);
// overlap: the device sets up a kernel while the previous one ends.
void launch_step(Storage storage, const StepCall& call, bool overlap, void* stream);
void launch_tokens(Storage storage, const StepArgs& args, void* stream);
void launch_mix(bool packed, const MixArgs& args, void* stream);
void launch_store(const StoreArgs& args, void* stream);  // packed

}  // namespace mhla::cuda::state
