// The compiled kernels of the linear form, by input type and padded width: what the host launches.
#pragma once

#include "mhla/cuda/sm80/linear_args.h"
#include "mhla/cuda/sm80/mixing_args.h"

namespace mhla::cuda {

template <typename Args>
using Kernel = void (*)(Args);

inline constexpr int kMostStages = 4;

// A kernel and its shared memory: stages row tiles are in flight.
struct LinearKernel {
  Kernel<LinearArgs> entry = nullptr;
  int threads = 0;
  int blocks = 1;      // thread blocks that share a multiprocessor
  int bytes_one = 0;   // with one stage
  int bytes_more = 0;  // for each further stage; 0 when the kernel has one
  int most_stages = 1;
};

struct LinearKernels {
  int dk, dv;        // padded widths: all of dk, one tile of dv
  int rows;          // tokens of a tile
  int carry_floats;  // per summary and dv tile
  LinearKernel summaries, readout, backward_q, backward_kv;
  LinearKernel packed_backward_q, packed_backward_kv;  // one dv tile; bf16 only
  // Causal, blocks of one row tile; bf16 only.
  LinearKernel packed_readout_causal, packed_backward_q_causal, packed_backward_kv_causal;
  // The same for all of dv at once, without a normaliser; those of the backward in one, which
  // wants the gradients of both summaries.
  LinearKernel packed_readout_block, packed_backward_block;
  LinearKernel readout_causal, backward_q_causal, backward_kv_causal;
  LinearKernel row_dots;
};

struct MixKernel {
  Kernel<MixArgs> entry;
  int rows;
  int columns;  // entries of a slab
  int bytes;
};
struct WeightGradientKernel {
  Kernel<WeightGradientArgs> entry;
  int tile;
  int threads;
  int bytes;
};

// Kernels that keep all weights in shared memory: one sequence, one matrix; bf16 only.
struct ResidentKernels {
  MixKernel mix, mix_transposed;
  WeightGradientKernel weight_gradient;  // may be none
};
const ResidentKernels* resident_kernels(int blocks);  // null: there is none

// Mixing of S and dS~ at once; bf16, causal, up to `blocks` blocks.
struct PairMixKernel {
  Kernel<PairMixArgs> entry;
  int blocks, entries;  // most blocks; entries of a tile
  int threads, bytes;
};
const PairMixKernel& pair_mix_kernel();

inline constexpr int kMixKernels = 5, kWeightGradientKernels = 4;

// What depends on the input type only.
struct TypeKernels {
  int summary_size;  // bytes of an element of a summary
  Kernel<PrepareArgs> prepare_weights;
  MixKernel mix[kMixKernels], mix_transposed[kMixKernels];       // by rows, ascending
  WeightGradientKernel weight_gradient[kWeightGradientKernels];  // by tile, ascending
  Kernel<LinearArgs> key_sums, row_products, row_factors;
  Kernel<LinearArgs> denominator_backward_q, denominator_backward_k;
};

// One file each: linear_<type>_<dk>.cu and types_<type>.cu.
#define MHLA_LINEAR_KERNELS(type)                     \
  const LinearKernels& linear_kernels_##type##_32();  \
  const LinearKernels& linear_kernels_##type##_64();  \
  const LinearKernels& linear_kernels_##type##_80();  \
  const LinearKernels& linear_kernels_##type##_96();  \
  const LinearKernels& linear_kernels_##type##_128(); \
  const LinearKernels& linear_kernels_##type##_256(); \
  const TypeKernels& type_kernels_##type();
MHLA_LINEAR_KERNELS(bf16)
MHLA_LINEAR_KERNELS(f16)
MHLA_LINEAR_KERNELS(f32)
MHLA_LINEAR_KERNELS(tf32)
#undef MHLA_LINEAR_KERNELS

// Where those above do not fit: in 99 KB of shared memory, in one file a type (lean_<type>.cu). A
// build for Hopper alone has none (no_lean.cpp).
const LinearKernels& lean_kernels_bf16(std::int64_t dk);
const LinearKernels& lean_kernels_f16(std::int64_t dk);
const LinearKernels& lean_kernels_f32(std::int64_t dk);
const LinearKernels& lean_kernels_tf32(std::int64_t dk);

// 16-bit inputs, bf16 or f16: at most kSmallWidth columns of q or of v, and kSmallWidest of both.
// Wider heads pass `mhla verify` with rounded rows; f32 tiles of more columns leave shared memory
// for one thread block.
inline constexpr int kSmallWidth = 16, kSmallWidest = 64;
const LinearKernels& linear_kernels_small(bool brain, int widest);
const TypeKernels& type_kernels_small(bool brain);

Kernel<MixArgs> mix_vectors_kernel(bool transposed);
Kernel<WeightGradientArgs> vector_gradient_kernel();
Kernel<ReduceArgs> reduce_gradient_kernel();
inline constexpr int kMixThreadsOfKernels = 256, kDenominatorThreads = 128;
inline constexpr int kVectorRowsOfKernels = 8, kVectorGradientTile = 16;

}  // namespace mhla::cuda
