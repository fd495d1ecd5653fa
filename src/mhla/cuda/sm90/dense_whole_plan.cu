// Planning the whole-head backward.
#include <algorithm>

#include "mhla/cuda/device/types.cuh"
#include "mhla/cuda/sm90/dense_whole.h"

namespace mhla::cuda::sm90 {
namespace {

// Fewer rows leave so much of the tiles empty that the general kernels do less work.
constexpr int kFewestSlots = 9;

// Slots of a layout with one sequence: rows get tokens, slots get blocks. Returns how many there
// are, or 0 when they do not fit.
int place(const BlockLayout& layout, int (&token)[kWholeRows], int (&block)[kWholeSlots]) {
  std::fill(std::begin(token), std::end(token), -1);
  std::fill(std::begin(block), std::end(block), -1);
  int slots = 0;
  for (const Block& b : layout.blocks()) {
    const std::int64_t needed = (b.tokens() + kSlotRows - 1) / kSlotRows;
    if (slots + needed > kWholeSlots) return 0;
    for (std::int64_t p = 0; p < b.tokens(); ++p) {
      token[slots * kSlotRows + p] = static_cast<int>(b.token(p));
    }
    for (std::int64_t i = 0; i < needed; ++i) block[slots++] = static_cast<int>(b.index);
  }
  return slots;
}

}  // namespace

std::optional<WholePlan> whole_plan(const Problem& problem, int processors) {
  const std::int64_t width = std::max(problem.dk, problem.dv);
  if (width <= 32 || width > 96 || problem.mask == Mask::causal || problem.mixing_per_head ||
      problem.layout.sequences().size() != 1) {
    return std::nullopt;
  }
  WholePlan plan;
  const int queries = place(problem.layout, plan.table.query_token, plan.table.query_block);
  const int keys = place(problem.keys(), plan.table.key_token, plan.table.key_block);
  if (queries < kFewestSlots || keys < kFewestSlots) return std::nullopt;
  plan.width = width <= 64 ? 64 : width <= 72 ? 72 : 96;
  plan.grid = static_cast<int>(std::min<std::int64_t>(processors, problem.batch * problem.heads));
  plan.padded = problem.layout.tokens() < kWholeRows || problem.keys().tokens() < kWholeRows;
  int slot = 0;
  for (int b = 0; b < problem.keys().mixing_size(); ++b) {
    plan.block_offsets.push_back(slot);
    for (; slot < keys && plan.table.key_block[slot] == b; ++slot) plan.key_slots.push_back(slot);
  }
  plan.block_offsets.push_back(slot);
  return plan;
}

void launch_whole(DType dtype, int width, int grid, const WholeArgs& args, void* stream) {
  if (dtype == DType::bf16) return launch_whole_type<bf16>(width, grid, args, stream);
  if (dtype == DType::f16) return launch_whole_type<f16>(width, grid, args, stream);
  fail(ErrorCode::internal, "cuda.dense", "no kernel for ", name(dtype));
}

}  // namespace mhla::cuda::sm90
