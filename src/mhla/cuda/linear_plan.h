// What the linear form decides once per problem: kernels, tables on the device, the workspace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mhla/core/implementation.h"
#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm80/linear_kernels.h"
#include "mhla/cuda/sm90/linear_launch.h"

namespace mhla::cuda {

// Tables on the device, owned by the plan.
struct LinearTables {
  DeviceTable<DeviceBlock> q_blocks, k_blocks;
  DeviceTable<MixTask> mix, mix_transposed;
  DeviceTable<MixSequence> sequences;
  DeviceTable<int> block_index;  // of the query blocks
};

// Sizes and choices that follow from the problem alone.
struct LinearPlan {
  const LinearKernels* kernels = nullptr;
  const TypeKernels* types = nullptr;
  const MixKernel* mix = nullptr;
  const MixKernel* mix_transposed = nullptr;
  const WeightGradientKernel* weight_gradient = nullptr;
  const ResidentKernels* resident = nullptr;  // instead of mix, when there are
  int shared_bytes = 0;                       // of a thread block on this device
  int dv_tiles = 1;
  int entries = 0;  // of a summary, padded
  int q_blocks = 0, k_blocks = 0, slots = 0;
  int rows = 0, cols = 0;                // mixing weights that are used
  int rows_padded = 0, cols_padded = 0;  // as the mixing kernels read them
  int matrices = 1;
  int mix_slabs = 1, mix_transposed_slabs = 1;  // of entries per thread block
  int mix_tasks = 0, mix_transposed_tasks = 0;
  bool normalized = false, separate = false, shared = false, causal = false;
  bool given = false;            // denominators come from their own kernels
  bool packed_backward = false;  // the kernels for bf16 and one dv tile
  bool packed_causal = false;    // the kernels for bf16 and blocks of one row tile
  bool whole_blocks = false;     // and no normaliser: the kernels for a whole block
  bool pair_mixing = false;      // and few blocks: S and dS~ are mixed at once, in place
  bool sums_inside = false;      // key sums are entries of the summaries
  bool row_dots = false;         // the backward takes d_o . o from a read-out of its own
  int row_tiles = 1;             // of the longest block
  sm90::TilePlan tiles = {};     // the kernels for Hopper, when there are
  sm90::SlabPlan slabs = {};     // those instead of resident ones
  bool mixes_in_place = false;   // S~ may take the place of S

  // Pairs are worked on in groups, which bounds the workspace.
  int group_batch = 1, group_heads = 1;
  std::int64_t groups() const { return batch_groups * head_groups; }
  std::int64_t batch_groups = 1, head_groups = 1;
  std::int64_t group_pairs() const { return static_cast<std::int64_t>(group_batch) * group_heads; }

  // Partial sums of the weights' gradient.
  int gradient_rows = 0, gradient_cols = 0;  // padded to tiles
  int splits = 1, vector_splits = 0;
  std::int64_t slots_of_sums() const {
    if (pair_mixing) return splits;  // groups add to what those before them left
    return (matrices > 1 ? batch_groups : groups()) * (splits + vector_splits);
  }
};

// through_tf32: the products of f32 inputs, on the tensor cores.
LinearPlan linear_plan(const Problem& problem, bool through_tf32);
// What of its table a plan may launch; the rest need not fit the device.
std::vector<const LinearKernel*> used_kernels(const LinearPlan& plan);
// Row tiles in flight: as many as are useful and leave room for the kernel's thread blocks.
int stages_of(const LinearKernel& kernel, const LinearPlan& plan);
inline int shared_bytes(const LinearKernel& kernel, int stages) {
  return kernel.bytes_one + (stages - 1) * kernel.bytes_more;
}
LinearTables linear_tables(const Problem& problem, const LinearPlan& plan);

// Offsets of the workspace's arrays; an array that a problem does not need has no bytes.
struct LinearWorkspace {
  std::size_t weights, weights_f32, diagonal;
  std::size_t summaries, mixed, d_mixed, carry;
  std::size_t z, z_mixed, dz_read, dz;
  std::size_t row_base, row_intra, row_mixed, row_inv, row_dden, row_e, row_dots;
  std::size_t diagonal_terms, partial, counters;
  std::size_t bytes;
};
LinearWorkspace linear_workspace(const Problem& problem, const LinearPlan& plan, bool backward);

// Why the linear form does not serve a problem, and which of its kernels serve one.
std::optional<std::string> linear_refuses(const Problem& problem);
std::string kernels_text(const Problem& problem, const LinearPlan& plan);

}  // namespace mhla::cuda
