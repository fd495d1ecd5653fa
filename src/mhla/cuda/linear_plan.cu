// Choosing kernels, cutting the mixing product into tasks, laying out the workspace.
#include "mhla/cuda/linear_plan.h"

#include <algorithm>
#include <initializer_list>

#include "mhla/cuda/arguments.h"

namespace mhla::cuda {
namespace {

using Getter = const LinearKernels& (*)();

// In so much shared memory.
bool fits(const LinearKernel& kernel, int bytes) { return shared_bytes(kernel, 1) <= bytes; }

const LinearKernels& small_kernels(const Problem& problem) {
  return linear_kernels_small(problem.dtype == DType::bf16,
                              static_cast<int>(std::max(problem.dk, problem.dv)));
}

// Results of tiny heads have few terms: roundings on the way do not average out.
bool is_small(const Problem& problem) {
  const auto [narrow, wide] = std::minmax(problem.dk, problem.dv);
  return problem.dtype != DType::f32 && narrow <= kSmallWidth && wide <= kSmallWidest &&
         (problem.mask != Mask::causal ||
          fits(small_kernels(problem).readout_causal, shared_memory(problem.device.index)));
}

bool is_packed(const Problem& problem) {
  return problem.dtype == DType::bf16 && !is_small(problem);
}

const LinearKernels& kernels_for(const Problem& problem, bool through_tf32) {
  const DType dtype = problem.dtype;
  if (is_small(problem)) return small_kernels(problem);
  static constexpr Getter kBf16[] = {linear_kernels_bf16_32,  linear_kernels_bf16_64,
                                     linear_kernels_bf16_80,  linear_kernels_bf16_96,
                                     linear_kernels_bf16_128, linear_kernels_bf16_256};
  static constexpr Getter kF16[] = {linear_kernels_f16_32,  linear_kernels_f16_64,
                                    linear_kernels_f16_80,  linear_kernels_f16_96,
                                    linear_kernels_f16_128, linear_kernels_f16_256};
  static constexpr Getter kF32[] = {linear_kernels_f32_32,  linear_kernels_f32_64,
                                    linear_kernels_f32_80,  linear_kernels_f32_96,
                                    linear_kernels_f32_128, linear_kernels_f32_256};
  static constexpr Getter kTf32[] = {linear_kernels_tf32_32,  linear_kernels_tf32_64,
                                     linear_kernels_tf32_80,  linear_kernels_tf32_96,
                                     linear_kernels_tf32_128, linear_kernels_tf32_256};
  const auto& list = dtype == DType::bf16  ? kBf16
                     : dtype == DType::f16 ? kF16
                     : through_tf32        ? kTf32
                                           : kF32;
  for (const Getter get : list) {
    if (get().dk >= problem.dk) return get();
  }
  fail(ErrorCode::internal, "cuda.linear", "no kernel for dk = ", problem.dk);
}

const LinearKernels& lean_kernels_for(const Problem& problem, bool through_tf32) {
  const DType dtype = problem.dtype;
  return dtype == DType::bf16  ? lean_kernels_bf16(problem.dk)
         : dtype == DType::f16 ? lean_kernels_f16(problem.dk)
         : through_tf32        ? lean_kernels_tf32(problem.dk)
                               : lean_kernels_f32(problem.dk);
}

const TypeKernels& type_kernels_for(const Problem& problem, bool through_tf32) {
  const DType dtype = problem.dtype;
  if (is_small(problem)) return type_kernels_small(dtype == DType::bf16);
  return dtype == DType::bf16  ? type_kernels_bf16()
         : dtype == DType::f16 ? type_kernels_f16()
         : through_tf32        ? type_kernels_tf32()
                               : type_kernels_f32();
}

int padded(std::int64_t n, int to) { return static_cast<int>((n + to - 1) / to * to); }

// The tile that covers n rows with the fewest rows too many; a step costs about 8 rows of overhead.
const MixKernel& mix_for(const MixKernel (&list)[kMixKernels], std::int64_t n) {
  const MixKernel* best = &list[0];
  std::int64_t best_cost = 0;
  for (const MixKernel& kernel : list) {
    const std::int64_t tiles = (n + kernel.rows - 1) / kernel.rows;
    const std::int64_t cost = tiles * (kernel.rows + 8);
    if (best_cost == 0 || cost < best_cost) {
      best = &kernel;
      best_cost = cost;
    }
  }
  return *best;
}

const ResidentKernels* resident_for(const Problem& problem, const LinearPlan& plan) {
  const int most = std::max(plan.q_blocks, plan.k_blocks);
  if (problem.dtype != DType::bf16 || is_small(problem) || plan.matrices > 1 ||
      problem.layout.sequences().size() > 1 || 2 * std::min(plan.q_blocks, plan.k_blocks) < most) {
    return nullptr;
  }
  const ResidentKernels* kernels = resident_kernels(most);
  if (kernels == nullptr || shared_memory(problem.device.index) < kernels->mix.bytes) {
    return nullptr;
  }
  return kernels;
}

// Rows of `out`, columns of `in`; `lower` says which side of the diagonal carries weights.
std::vector<MixTask> mix_tasks(const BlockLayout& out, const BlockLayout& in, int rows_per_task,
                               Mask mask, bool transposed) {
  std::vector<MixTask> tasks;
  for (std::size_t s = 0; s < out.sequences().size(); ++s) {
    const Sequence &to = out.sequences()[s], &from = in.sequences()[s];
    for (std::int64_t row = 0; row < to.blocks; row += rows_per_task) {
      std::int64_t begin = 0, end = from.blocks;
      if (mask != Mask::none) {
        if (transposed) begin = std::min(row, end);
        else end = std::min(end, row + rows_per_task);
      }
      begin = begin / 16 * 16;  // NOTE: weights are copied in chunks of 16 bytes
      tasks.push_back({.out_first = static_cast<int>(to.first_block),
                       .out_rows = static_cast<int>(to.blocks),
                       .in_first = static_cast<int>(from.first_block),
                       .in_rows = static_cast<int>(from.blocks),
                       .row = static_cast<int>(row),
                       .col_begin = static_cast<int>(begin),
                       .col_end = static_cast<int>(end)});
    }
  }
  return tasks;
}

// Summaries of one group of pairs, in bytes: bounds the workspace. Groups that fit the L2 cache
// were slower (docs/kernels/linear.md).
constexpr std::int64_t kGroupBytes = std::int64_t{1} << 30;
// S of the pairs that the one causal kernel holds at once; with their dS~ they stay in the L2
// cache.
constexpr std::int64_t kPairGroupBytes = std::int64_t{17} << 20;
// Thread blocks that keep every multiprocessor of a large GPU busy.
constexpr std::int64_t kManyBlocks = 528;

// Slabs of entries per thread block: several keep its loads running, as long as there are blocks
// enough.
int slabs_per_block(const LinearPlan& plan, const MixKernel& kernel, std::int64_t tasks) {
  const std::int64_t slabs = (plan.entries + kernel.columns - 1) / kernel.columns;
  const std::int64_t blocks = slabs * tasks * plan.group_pairs();
  return static_cast<int>(
      std::clamp<std::int64_t>(blocks / (2 * kManyBlocks), 1, std::min<std::int64_t>(slabs, 8)));
}

void choose_groups(const Problem& problem, LinearPlan& plan) {
  const std::int64_t pair_bytes = static_cast<std::int64_t>(plan.k_blocks) * plan.entries *
                                  plan.types->summary_size;
  const std::int64_t most = plan.pair_mixing ? kPairGroupBytes : kGroupBytes;
  const std::int64_t pairs = std::max<std::int64_t>(1,
                                                    most / std::max<std::int64_t>(pair_bytes, 1));
  if (pairs >= problem.heads) {
    plan.group_heads = static_cast<int>(problem.heads);
    plan.group_batch = static_cast<int>(std::clamp<std::int64_t>(
        pairs / problem.heads, 1, std::max<std::int64_t>(problem.batch, 1)));
  } else {
    const std::int64_t groups = (problem.heads + pairs - 1) / pairs;
    plan.group_heads = static_cast<int>((problem.heads + groups - 1) / groups);
  }
  plan.batch_groups = (problem.batch + plan.group_batch - 1) / plan.group_batch;
  plan.head_groups = (problem.heads + plan.group_heads - 1) / plan.group_heads;
}

// The choices that a table of kernels makes.
void use_kernels(const Problem& problem, const LinearKernels& kernels, LinearPlan& plan) {
  const BlockLayout &q = problem.layout, &k = problem.keys();
  const bool packed = is_packed(problem);
  plan.kernels = &kernels;
  plan.dv_tiles = static_cast<int>((problem.dv + kernels.dv - 1) / kernels.dv);
  // NOTE: the fused denominator sees one dv tile of o at a time, and no other block's queries.
  plan.given = plan.normalized &&
               (plan.causal || plan.shared || plan.separate || plan.dv_tiles > 1);
  plan.packed_backward = packed && !plan.causal && plan.dv_tiles == 1;
  plan.packed_causal = packed && plan.causal && q.max_block_tokens() <= kernels.rows;
  plan.whole_blocks = plan.packed_causal && !plan.normalized &&
                      kernels.packed_backward_block.entry != nullptr &&
                      fits(kernels.packed_readout_block, plan.shared_bytes) &&
                      fits(kernels.packed_backward_block, plan.shared_bytes);
  plan.pair_mixing = plan.whole_blocks && plan.matrices == 1 && q.sequences().size() == 1 &&
                     plan.rows <= pair_mix_kernel().blocks &&
                     pair_mix_kernel().bytes <= plan.shared_bytes;
  plan.sums_inside = packed && plan.normalized && !plan.given;
  plan.row_dots = plan.given && problem.dtype != DType::f32;
  plan.entries = plan.dv_tiles * kernels.dk * kernels.dv +
                 (plan.sums_inside ? padded(kernels.dk, 32) : 0);
  const std::int64_t longest = std::max(q.max_block_tokens(), k.max_block_tokens());
  plan.row_tiles = static_cast<int>((longest + kernels.rows - 1) / kernels.rows);
}

// The gradient of `most` x `most` weights.
const WeightGradientKernel& gradient_kernel_for(const TypeKernels& types, int most, int bytes) {
  const WeightGradientKernel* best = &types.weight_gradient[most <= 16 ? 0 : most <= 64 ? 1 : 3];
  for (const int other : {2, 1}) {  // a smaller tile when it pads much less
    const auto& kernel = types.weight_gradient[other];
    if (most > 64 &&
        (padded(most, kernel.tile) * 5 < padded(most, best->tile) * 4 || best->bytes > bytes)) {
      best = &kernel;
    }
  }
  return *best;
}

}  // namespace

LinearPlan linear_plan(const Problem& problem, bool through_tf32) {
  // NOTE: the parts of d_mixing that numerator and denominator give cancel further than TF32
  // reaches where both come from products inside of a block (six times the naive error).
  if (problem.mask == Mask::causal && problem.normalizer != Normalizer::none) through_tf32 = false;
  LinearPlan plan;
  const BlockLayout &q = problem.layout, &k = problem.keys();
  plan.shared_bytes = shared_memory(problem.device.index);
  plan.types = &type_kernels_for(problem, through_tf32);
  plan.q_blocks = static_cast<int>(q.blocks().size());
  plan.k_blocks = static_cast<int>(k.blocks().size());
  const auto box = largest_box(q);
  plan.slots = padded(box[0] * box[1] * box[2], sm90::kSlotPad);
  plan.rows = static_cast<int>(q.mixing_size());
  plan.cols = static_cast<int>(k.mixing_size());
  plan.rows_padded = padded(plan.rows, kMixPad);
  plan.cols_padded = padded(plan.cols, kMixPad);
  plan.matrices = problem.mixing_per_head ? static_cast<int>(problem.heads) : 1;
  plan.causal = problem.mask == Mask::causal;
  plan.normalized = problem.normalizer != Normalizer::none;
  plan.shared = problem.normalizer == Normalizer::shared_position;
  plan.separate = plan.normalized && problem.separate_denominator;
  use_kernels(problem, kernels_for(problem, through_tf32), plan);
  const auto fit = [&](const LinearKernel* kernel) { return fits(*kernel, plan.shared_bytes); };
  if (!std::ranges::all_of(used_kernels(plan), fit) && !is_small(problem)) {
    use_kernels(problem, lean_kernels_for(problem, through_tf32), plan);
  }
  if (is_packed(problem)) plan.tiles = sm90::tile_plan(problem);

  plan.resident = resident_for(problem, plan);
  const int most_blocks = std::max(plan.q_blocks, plan.k_blocks);
  const bool few_blocks = plan.tiles.kernels != nullptr && plan.matrices == 1 && most_blocks <= 64;
  if (plan.resident != nullptr || few_blocks) {
    plan.slabs = sm90::slab_plan(problem.device.index, most_blocks);
  }
  // A slab is written where it was read, so that what it replaces never leaves the L2 cache.
  plan.mixes_in_place = plan.slabs.kernels != nullptr && plan.q_blocks == plan.k_blocks;
  plan.mix = &mix_for(plan.types->mix, plan.rows);
  plan.mix_transposed = &mix_for(plan.types->mix_transposed, plan.cols);
  const auto tasks = mix_tasks(q, k, plan.mix->rows, problem.mask, false);
  const auto back = mix_tasks(k, q, plan.mix_transposed->rows, problem.mask, true);
  plan.mix_tasks = static_cast<int>(tasks.size());
  plan.mix_transposed_tasks = static_cast<int>(back.size());
  choose_groups(problem, plan);
  // A tile may hold two heads, which must not be cut apart.
  if (plan.tiles.kernels != nullptr && plan.group_heads % plan.tiles.kernels->heads != 0) {
    plan.tiles = {};
  }
  plan.mix_slabs = slabs_per_block(plan, *plan.mix, plan.mix_tasks);
  plan.mix_transposed_slabs = slabs_per_block(plan, *plan.mix_transposed,
                                              plan.mix_transposed_tasks);

  const int most = std::max(plan.rows, plan.cols);
  plan.weight_gradient = &gradient_kernel_for(*plan.types, most, plan.shared_bytes);
  const int tile = plan.weight_gradient->tile;
  plan.gradient_rows = padded(plan.rows, tile);
  plan.gradient_cols = padded(plan.cols, tile);
  const std::int64_t tiles = static_cast<std::int64_t>(plan.gradient_rows / tile) *
                             (plan.gradient_cols / tile) * plan.matrices;
  const std::int64_t units = plan.group_pairs() / (plan.matrices > 1 ? plan.group_heads : 1) *
                             static_cast<std::int64_t>(q.sequences().size());
  const std::int64_t depth = 16 * 1024 / tile;  // entries worth a thread block
  plan.splits = static_cast<int>(
      std::clamp<std::int64_t>(kManyBlocks / 2 / std::max<std::int64_t>(tiles, 1), 1,
                               std::max<std::int64_t>(1, units * plan.entries / depth)));
  if (plan.normalized && !plan.sums_inside) {
    const std::int64_t small = static_cast<std::int64_t>(plan.gradient_rows / 16) *
                               (plan.gradient_cols / 16) * plan.matrices;
    plan.vector_splits = static_cast<int>(std::clamp<std::int64_t>(
        kManyBlocks / std::max<std::int64_t>(small, 1), 1, std::max<std::int64_t>(1, units)));
  }
  if (plan.resident != nullptr && plan.resident->weight_gradient.entry != nullptr) {
    plan.weight_gradient = &plan.resident->weight_gradient;
    plan.gradient_rows = plan.gradient_cols = plan.weight_gradient->tile;
    plan.splits = kResidentGrid;
  }
  if (plan.pair_mixing) plan.splits = kResidentGrid;
  return plan;
}

std::vector<const LinearKernel*> used_kernels(const LinearPlan& plan) {
  const LinearKernels& k = *plan.kernels;
  std::vector<const LinearKernel*> used{&k.summaries};
  const auto add = [&used](std::initializer_list<const LinearKernel*> kernels) {
    used.insert(used.end(), kernels);
  };
  if (plan.whole_blocks) {
    add({&k.packed_readout_block, &k.packed_backward_block});
  } else if (plan.packed_causal) {
    add({&k.packed_readout_causal, &k.packed_backward_q_causal, &k.packed_backward_kv_causal});
  } else if (plan.causal) {
    add({&k.readout_causal, &k.backward_q_causal, &k.backward_kv_causal});
  } else if (plan.packed_backward) {
    add({&k.readout, &k.packed_backward_q, &k.packed_backward_kv});
  } else {
    add({&k.readout, &k.backward_q, &k.backward_kv});
  }
  if (plan.row_dots) add({&k.row_dots});
  return used;
}

int stages_of(const LinearKernel& kernel, const LinearPlan& plan) {
  // NOTE: the generic kernels reuse a stage's summary tile when dv has several tiles.
  if (plan.dv_tiles > 1 && kernel.most_stages == 2) return 1;
  // A multiprocessor has a little more than one thread block may have; each reserves as much.
  constexpr int kReserved = 1024;
  int stages = std::clamp(plan.row_tiles, 1, kernel.most_stages);
  while (stages > 1 &&
         kernel.blocks * (shared_bytes(kernel, stages) + kReserved) > plan.shared_bytes) {
    --stages;
  }
  return stages;
}

LinearTables linear_tables(const Problem& problem, const LinearPlan& plan) {
  const BlockLayout &q = problem.layout, &k = problem.keys();
  LinearTables tables;
  tables.q_blocks = DeviceTable<DeviceBlock>(device_blocks(q));
  tables.k_blocks = DeviceTable<DeviceBlock>(device_blocks(k));
  tables.mix = DeviceTable<MixTask>(mix_tasks(q, k, plan.mix->rows, problem.mask, false));
  tables.mix_transposed = DeviceTable<MixTask>(
      mix_tasks(k, q, plan.mix_transposed->rows, problem.mask, true));
  std::vector<MixSequence> sequences;
  for (std::size_t s = 0; s < q.sequences().size(); ++s) {
    const Sequence &a = q.sequences()[s], &b = k.sequences()[s];
    sequences.push_back({.q_first = static_cast<int>(a.first_block),
                         .q_rows = static_cast<int>(a.blocks),
                         .k_first = static_cast<int>(b.first_block),
                         .k_rows = static_cast<int>(b.blocks)});
  }
  tables.sequences = DeviceTable<MixSequence>(sequences);
  std::vector<int> index;
  for (const Block& block : q.blocks()) index.push_back(static_cast<int>(block.index));
  tables.block_index = DeviceTable<int>(index);
  return tables;
}

LinearWorkspace linear_workspace(const Problem& problem, const LinearPlan& plan, bool backward) {
  std::size_t end = 0;
  const auto take = [&](bool needed, std::int64_t count, int size) {
    const std::size_t offset = end;
    if (needed) {
      end += (static_cast<std::size_t>(count) * size + kWorkspaceAlignment - 1) /
             kWorkspaceAlignment * kWorkspaceAlignment;
    }
    return offset;
  };
  const std::int64_t weights = static_cast<std::int64_t>(plan.matrices) * plan.rows_padded *
                               plan.cols_padded;
  const std::int64_t pairs = plan.group_pairs();
  const std::int64_t q_blocks = pairs * plan.q_blocks, k_blocks = pairs * plan.k_blocks;
  const std::int64_t most_blocks = std::max(q_blocks, k_blocks);
  const int size = plan.types->summary_size, dk = plan.kernels->dk;
  const bool norm = plan.normalized && !plan.sums_inside, exact = norm && !plan.shared;
  const bool carries = backward && problem.layout.max_block_tokens() > plan.kernels->rows &&
                       (plan.dv_tiles > 1 || plan.causal);
  LinearWorkspace w;
  w.weights = take(true, weights, size);
  w.weights_f32 = take(true, weights, 4);
  w.diagonal = take(true, static_cast<std::int64_t>(plan.matrices) * plan.rows_padded, 4);
  w.summaries = take(true, k_blocks * plan.entries, size);
  w.mixed = take(backward ? !plan.pair_mixing : !plan.mixes_in_place, most_blocks * plan.entries,
                 size);
  if (!backward && plan.mixes_in_place) w.mixed = w.summaries;
  w.d_mixed = take(backward, q_blocks * plan.entries, size);
  w.carry = take(carries, q_blocks * plan.dv_tiles * plan.kernels->carry_floats, 4);
  w.z = take(norm, k_blocks * dk, 4);
  w.z_mixed = take(exact, q_blocks * dk, 4);
  w.dz_read = take(norm && backward, q_blocks * dk, 4);
  w.dz = take(exact && backward, k_blocks * dk, 4);
  const std::int64_t rows = q_blocks * plan.slots;
  w.row_base = take(plan.given, rows, 4);
  w.row_intra = take(plan.given && plan.causal, rows, 4);
  w.row_mixed = take(plan.given && plan.shared, rows, 4);
  w.row_inv = take(plan.given, rows, 4);
  w.row_dden = take(plan.given && backward, rows, 4);
  w.row_e = take(plan.given && plan.shared && backward, rows, 4);
  w.row_dots = take(plan.row_dots && backward, plan.dv_tiles * rows, 4);
  w.diagonal_terms = take(plan.causal && backward, problem.batch * problem.heads * plan.q_blocks,
                          4);
  w.partial = take(
      backward, plan.slots_of_sums() * plan.matrices * plan.gradient_rows * plan.gradient_cols, 4);
  w.counters = take(backward && plan.pair_mixing, 3 * problem.batch * problem.heads, 4);
  w.bytes = end;
  return w;
}

std::optional<std::string> linear_refuses(const Problem& problem) {
  if (auto reason = device_refuses(problem.device)) return reason;
  if (problem.dtype == DType::f64) return "f64 is not compiled for CUDA";
  if (problem.dk > 256) return "dk is at most 256";
  constexpr std::int64_t kMost = 0x7fffffff, kGrid = 65535;
  if (problem.layout.tokens() > kMost || problem.keys().tokens() > kMost) {
    return "at most 2^31 - 1 tokens";
  }
  const auto blocks = std::max(problem.layout.blocks().size(), problem.keys().blocks().size());
  if (problem.batch > kGrid || blocks > static_cast<std::size_t>(kGrid)) {
    return "at most 65535 batch entries and blocks";
  }
  return std::nullopt;
}

std::string kernels_text(const Problem& problem, const LinearPlan& plan) {
  std::string text = plan.tiles.kernels != nullptr
                         ? "tiles of Hopper's copy engine where tensors allow (tile_*)"
                     : plan.pair_mixing   ? "whole causal blocks (packed_*_block), on Hopper their "
                                            "backward in one kernel (causal_chain)"
                     : plan.whole_blocks  ? "whole causal blocks (packed_*_block)"
                     : plan.packed_causal ? "causal blocks of one tile (packed_*_causal)"
                     : problem.dtype == DType::bf16 && plan.packed_backward
                         ? "groups of warps (packed_*)"
                         : "generic tiles";
  text += plan.slabs.kernels != nullptr ? ", mixing in slabs of Hopper's copy engine (mix_slabs)"
          : plan.resident != nullptr    ? ", mixing with resident weights (mix_resident)"
                                        : ", mixing (mix)";
  return text;
}

}  // namespace mhla::cuda
