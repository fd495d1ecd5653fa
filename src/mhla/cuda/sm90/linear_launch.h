// The Hopper kernels of cuda.linear: which problems they serve, and their launches.
#pragma once

#include <cstdint>

#include "mhla/core/implementation.h"
#include "mhla/cuda/sm90/linear_tiles.h"

namespace mhla::cuda::sm90 {

// Without kernels: the portable ones serve the problem.
struct TilePlan {
  const TileKernels* kernels = nullptr;
  TileLayout q = {}, k = {};
  int multiprocessors = 0;
};
// For bf16 problems. The backward serves those with one q and k for numerator and denominator.
TilePlan tile_plan(const Problem& problem);
// Once per plan: shared memory.
void allow_tiles(const TilePlan& plan);

// The mixing product with resident weights.
struct SlabPlan {
  const SlabKernels* kernels = nullptr;
  int multiprocessors = 0;
};
// For one bf16 matrix of weights of 17 to 64 or 97 to 256 rows and columns.
SlabPlan slab_plan(int device, int blocks);
void allow_slabs(const SlabPlan& plan);

inline constexpr int kUnpreparedSlabs = 64;  // kernels of so many blocks take weights as they are
struct SlabMix {
  bool transposed;
  void* weights;               // [rows][columns], padded with zeros
  std::int64_t rows, columns;  // padded
  TensorView mixing;           // [q blocks][k blocks] or larger
  bool lower;                  // those above the diagonal are not read
  bool early;                  // the call began with tile_summaries: what made mixing has ended
  void *in, *out;              // [pairs][blocks][entries]
  std::int64_t in_blocks, out_blocks, entries, pairs;
};
void mix_slabs(const SlabPlan& plan, const SlabMix& mix, Stream stream);

// The gradient of up to kGradientSlabs weights both ways; partial: [splits][160][160].
inline constexpr int kGradientSlabs = 160;
struct SlabGradient {
  void *left, *right;  // [pairs][blocks][entries]
  std::int64_t left_blocks, right_blocks, entries, pairs;
  float* partial;
  int splits;
};
void weight_gradient_slabs(const SlabGradient& gradient, Stream stream);

// A rectangle of (batch entry, head) pairs, whose summaries lie one after another.
struct TileGroup {
  int batch_first, batch, head_first, heads;
};

// What shared_position keeps apart from the summaries.
struct TileRows {
  float *z, *dz;  // [pair][block][D]: key sums and their gradients
  // [pair][block][slots]: phi(q) . z, its gradient; the factor of a row, the gradient of its
  // denominator; <d_o, o> over the factor.
  float *base, *e, *factor, *dden, *dots;
  const float* weights;  // [heads or 1][padded rows][padded columns], f32
  std::int64_t weights_stride;
  int weights_ld;
};

// The tensors of one call as the copy engine sees them.
class TileCall {
 public:
  TileCall(const Problem& problem, const TilePlan& plan, int entries, bool normalized);
  // False where the engine cannot address one of the tensors.
  bool take(const ForwardInputs& inputs, const ForwardOutputs& outputs);
  bool take(const BackwardInputs& inputs, const BackwardOutputs& outputs);

  // key_sums: where they go if they are not part of the summaries. factors: of rows, if they are
  // given.
  void summaries(const TileGroup& group, void* s, float* key_sums, Stream stream) const;
  void readout(const TileGroup& group, const void* mixed, const float* factors,
               Stream stream) const;
  // rows: of shared_position, or null.
  void backward_q(const TileGroup& group, const void* mixed, void* d_mixed, const TileRows* rows,
                  Stream stream) const;
  void backward_kv(const TileGroup& group, const void* d_summaries, const TileRows* rows,
                   Stream stream) const;
  // shared_position: the factors of all rows, and in the backward (mixed: S~) the gradients of
  // their denominators; then those of phi(q) . z.
  void row_factors(const TileGroup& group, const void* mixed, const TileRows& rows,
                   Stream stream) const;
  void row_gradients(const TileGroup& group, const TileRows& rows, Stream stream) const;

 private:
  struct Tensor {
    TensorMap maps[2] = {};  // for every kind of block
    bool defined = false;
  };
  bool take(Tensor& tensor, const TensorView& view, const TileLayout& layout) const;
  TileArgs args(const TileGroup& group, const TileLayout& layout) const;
  void put(TensorMap (&maps)[2], const Tensor& tensor) const;
  RowMixArgs row_mix_args(const TileGroup& group, const TileRows& rows) const;
  void mix_rows(void (*kernel)(RowMixArgs), const TileGroup& group, const RowMixArgs& args,
                Stream stream) const;
  void start(const TileKernel& kernel, const TileArgs& args, Stream stream) const;

  const TilePlan& plan_;
  TileArgs common_{};
  Tensor q_, k_, v_, o_, d_o_, d_q_, d_k_, d_v_;
};

}  // namespace mhla::cuda::sm90
