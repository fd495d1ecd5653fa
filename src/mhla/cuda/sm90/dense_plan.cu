// Planning the dense form.
#include "mhla/cuda/sm90/dense_plan.h"

#include <algorithm>

namespace mhla::cuda::sm90 {
namespace {

constexpr int kSharedBytes = 232448;  // what a thread block of sm_90 can have
constexpr int kFewColumns = 16;       // of q and k

int compiled_width(std::int64_t width, int mixing_blocks) {
  for (const int compiled : {32, 64, 72, 96, 128}) {
    if (compiled == 72 && mixing_blocks > 16) continue;
    if (width <= compiled) return compiled;
  }
  return 0;
}

int tiles(std::int64_t tokens) {
  return static_cast<int>((std::max<std::int64_t>(tokens, 1) + kTile - 1) / kTile);
}

// Two row buffers a warpgroup and as many column slots as fit; one row buffer when two leave little
// room for the columns of the next sequence beside those in use.
DenseStage make_stage(const Problem& problem, const DensePlan& plan, DenseKernel kernel) {
  const bool transposed = kernel == DenseKernel::d_key;
  const BlockLayout& rows = transposed ? problem.keys() : problem.layout;
  const BlockLayout& columns = transposed ? problem.layout : problem.keys();
  const bool forward = kernel == DenseKernel::forward;
  DenseStage stage;
  stage.slot_bytes = slot_plan(plan.width, forward, transposed).bytes;
  stage.table_bytes =
      table_plan(static_cast<int>(rows.mixing_size()), transposed, plan.mixing_blocks).bytes;
  const int warpgroups = compute_warpgroups(kernel, plan.width);
  const int row_bytes = warpgroups * kTile * plan.width * 2 * (forward ? 1 : 2);
  int needed = 2;
  for (const Sequence& sequence : columns.sequences()) {
    needed = std::max(needed, tiles(sequence.tokens));
  }

  // Tables that never change are shared by the slots that a column tile passes through.
  const auto fit = [&](int buffers, bool stay) {
    const int left = kSharedBytes - kBarrierBytes - buffers * row_bytes;
    return stay ? (left - needed * stage.table_bytes) / stage.slot_bytes
                : left / (stage.slot_bytes + stage.table_bytes);
  };
  const bool constant = columns.sequences().size() == 1 && !problem.mixing_per_head;
  const auto slots_beside = [&](int buffers) {
    const bool stay = constant && fit(buffers, true) >= needed;
    return std::min(kMaxSlots, fit(buffers, stay));
  };
  stage.row_buffers = kMaxRowBuffers;
  const bool crowded = 2 * slots_beside(2) < 3 * needed && slots_beside(1) > slots_beside(2);
  // NOTE: by queries, half the stalls were waits for columns of the next sequence.
  const bool starved = kernel == DenseKernel::d_query && slots_beside(2) < 2 * needed &&
                       slots_beside(1) >= 2 * needed;
  if (crowded || starved) stage.row_buffers = 1;
  stage.slots = slots_beside(stage.row_buffers);
  stage.resident = stage.slots >= needed;
  stage.tables_stay = constant && stage.resident && fit(stage.row_buffers, true) >= needed;
  stage.tables = stage.tables_stay ? needed : stage.slots;
  stage.shared_bytes = kBarrierBytes + stage.row_buffers * row_bytes +
                       stage.slots * stage.slot_bytes + stage.tables * stage.table_bytes;

  // A thread block takes all rows of a sequence when its columns stay, unless that idles the chip.
  const std::int64_t sequences = static_cast<std::int64_t>(rows.sequences().size());
  const bool whole = stage.resident && plan.pairs * sequences >= plan.processors;
  for (std::int64_t s = 0; s < sequences; ++s) {
    const Sequence& r = rows.sequences()[s];
    const Sequence& c = columns.sequences()[s];
    const std::int64_t step = whole ? std::max<std::int64_t>(r.tokens, 1) : kTile * warpgroups;
    for (std::int64_t first = 0; first < r.tokens; first += step) {
      stage.groups.push_back({.row_first = static_cast<int>(r.first_token + first),
                              .rows = static_cast<int>(std::min(step, r.tokens - first)),
                              .column_first = static_cast<int>(c.first_token),
                              .columns = static_cast<int>(c.tokens)});
    }
  }
  return stage;
}

struct TokenTables {
  std::vector<std::uint16_t> block;
  std::vector<int> order, list, offsets;
};

TokenTables token_tables(const BlockLayout& layout) {
  TokenTables tables;
  tables.block.resize(layout.tokens());
  tables.order.resize(layout.tokens());
  std::vector<std::vector<int>> members(layout.mixing_size());
  std::int64_t sequence = -1;
  int rank = 0;
  for (const Block& block : layout.blocks()) {
    if (block.sequence != sequence) rank = 0;
    sequence = block.sequence;
    for (std::int64_t p = 0; p < block.tokens(); ++p) {
      const std::int64_t token = block.token(p);
      tables.block[token] = static_cast<std::uint16_t>(block.index);
      tables.order[token] = rank++;
      members[block.index].push_back(static_cast<int>(token));
    }
  }
  for (const std::vector<int>& tokens : members) {
    tables.offsets.push_back(static_cast<int>(tables.list.size()));
    tables.list.insert(tables.list.end(), tokens.begin(), tokens.end());
  }
  tables.offsets.push_back(static_cast<int>(tables.list.size()));
  return tables;
}

}  // namespace

int DensePlan::grid(DenseKernel kernel) const {
  return static_cast<int>(std::min<std::int64_t>(processors, items(kernel)));
}

bool DensePlan::sums_by_head(const Problem& problem) const {
  return problem.mixing_per_head || stage(DenseKernel::d_key).groups.size() != 1;
}

std::int64_t DensePlan::sum_slots(const Problem& problem) const {
  return sums_by_head(problem) ? pairs : grid(DenseKernel::d_key);
}

std::optional<std::string> dense_refuses(const Problem& problem) {
  if (auto reason = device_refuses(problem.device, 90)) return reason;
  if (problem.dtype != DType::bf16 && problem.dtype != DType::f16) return "takes bf16 and f16";
  if (problem.dk > kMaxWidth || problem.dv > kMaxWidth) return "dk and dv are at most 128";
  if (problem.separate_denominator) return "takes no separate denominator";
  // A row whose features are all eps has a factor near 1 / eps, and dS overflows. With few columns
  // that is no rare row.
  if (problem.dtype == DType::f16 && problem.feature_map == FeatureMap::relu_eps &&
      problem.normalizer != Normalizer::none && problem.dk <= kFewColumns) {
    return "f16 rows of at most 16 columns may have factors beyond its range";
  }
  if (problem.layout.mixing_size() > kMaxBlocks || problem.keys().mixing_size() > kMaxBlocks) {
    return "takes at most 64 blocks a sequence";
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const std::int64_t tokens = std::max(problem.layout.tokens(), problem.keys().tokens());
  if (tokens > kMost / kMaxBlocks ||
      problem.batch * problem.heads > kMost / std::max<std::int64_t>(tokens, 1)) {
    return "counts rows in 32 bits";
  }
  for (std::size_t s = 0; s < problem.layout.sequences().size(); ++s) {
    if ((problem.layout.sequences()[s].tokens == 0) !=
        (problem.keys().sequences()[s].tokens == 0)) {
      return "needs keys for every sequence of queries";
    }
  }
  return std::nullopt;
}

DensePlan dense_plan(const Problem& problem) {
  DensePlan plan;
  const std::int64_t blocks = std::max(problem.layout.mixing_size(), problem.keys().mixing_size());
  plan.mixing_blocks = blocks <= 16 ? 16 : 64;
  plan.width = compiled_width(std::max(problem.dk, problem.dv), plan.mixing_blocks);
  plan.processors = multiprocessors(problem.device.index);
  plan.pairs = problem.batch * problem.heads;
  for (const DenseKernel kernel :
       {DenseKernel::forward, DenseKernel::d_query, DenseKernel::d_key}) {
    plan.stages[static_cast<int>(kernel)] = make_stage(problem, plan, kernel);
  }
  return plan;
}

DenseTables::DenseTables(const Problem& problem, const DensePlan& plan) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    groups[i] = DeviceTable<DenseGroup>(plan.stages[i].groups);
  }
  const TokenTables queries = token_tables(problem.layout), keys = token_tables(problem.keys());
  query_block = DeviceTable<std::uint16_t>(queries.block);
  key_block = DeviceTable<std::uint16_t>(keys.block);
  query_order = DeviceTable<int>(queries.order);
  key_order = DeviceTable<int>(keys.order);
  key_list = DeviceTable<int>(keys.list);
  key_offsets = DeviceTable<int>(keys.offsets);
}

}  // namespace mhla::cuda::sm90
