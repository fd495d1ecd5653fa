// Host side of the dense form: which kernels a problem gets, their shared memory and their tables.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "mhla/core/implementation.h"
#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/dense_launch.h"

namespace mhla::cuda::sm90 {

struct DenseStage {
  int slots = 0, row_buffers = 0, tables = 0;
  int slot_bytes = 0, table_bytes = 0, shared_bytes = 0;
  bool resident = false, tables_stay = false;
  std::vector<DenseGroup> groups;
};

struct DensePlan {
  int width = 0;                     // of the compiled kernel; dk and dv are padded to it
  int mixing_blocks = 0;             // likewise
  int processors = 0;                // of the device
  std::int64_t pairs = 0;            // batch * heads
  std::array<DenseStage, 3> stages;  // by DenseKernel

  const DenseStage& stage(DenseKernel kernel) const { return stages[static_cast<int>(kernel)]; }
  std::int64_t items(DenseKernel kernel) const {
    return pairs * static_cast<std::int64_t>(stage(kernel).groups.size());
  }
  int grid(DenseKernel kernel) const;
  // Sums of the mixing gradient are kept per thread block when each one meets the same keys again
  // and again, and per (batch, head) otherwise.
  bool sums_by_head(const Problem& problem) const;
  std::int64_t sum_slots(const Problem& problem) const;
};

std::optional<std::string> dense_refuses(const Problem& problem);
DensePlan dense_plan(const Problem& problem);

// What the kernels look up per token.
struct DenseTables {
  DenseTables(const Problem& problem, const DensePlan& plan);

  std::array<DeviceTable<DenseGroup>, 3> groups;  // by DenseKernel
  DeviceTable<std::uint16_t> query_block, key_block;
  DeviceTable<int> query_order, key_order;
  DeviceTable<int> key_list, key_offsets;  // key tokens sorted by block
};

}  // namespace mhla::cuda::sm90
