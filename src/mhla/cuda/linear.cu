// The linear form on CUDA devices: summaries, mixing, read-out, and their backward.
#include <algorithm>

#include "mhla/core/cost.h"
#include "mhla/cuda/arguments.h"
#include "mhla/cuda/causal.h"
#include "mhla/cuda/implementations.h"
#include "mhla/cuda/linear_plan.h"

namespace mhla::cuda {
namespace {

struct Prepared {
  LinearPlan plan;
  LinearTables tables;
  bool overlap;  // the device sets up a kernel while the previous one ends
};

// One call: arguments that stay the same, and the launches in order.
class Call {
 public:
  Call(const PlanData& data, const Workspace& workspace, Stream stream, bool backward)
      : problem_(data.problem),
        plan_(static_cast<const Prepared*>(data.prepared.get())->plan),
        tables_(static_cast<const Prepared*>(data.prepared.get())->tables),
        at_(linear_workspace(problem_, plan_, backward)),
        overlap_(static_cast<const Prepared*>(data.prepared.get())->overlap),
        base_(static_cast<unsigned char*>(workspace.data)),
        stream_(stream),
        tiles_(problem_, plan_.tiles, plan_.entries, plan_.sums_inside) {
    args_.all_heads = static_cast<int>(problem_.heads);
    args_.dk = static_cast<int>(problem_.dk);
    args_.dv = static_cast<int>(problem_.dv);
    args_.dv_tiles = plan_.dv_tiles;
    args_.dk_padded = plan_.kernels->dk;
    args_.map = feature_map(problem_.feature_map, problem_.dtype);
    args_.scale = static_cast<float>(problem_.scale);
    args_.summary_scale = 1.f;
    args_.eps = static_cast<float>(problem_.denominator_eps());
    args_.q_table = tables_.q_blocks.data();
    args_.k_table = tables_.k_blocks.data();
    args_.q_blocks = plan_.q_blocks;
    args_.k_blocks = plan_.k_blocks;
    args_.slots = plan_.slots;
    args_.entries = plan_.entries;
    args_.sums_inside = plan_.sums_inside;
    args_.summaries = at(at_.summaries);
    args_.mixed = at(at_.mixed);
    args_.d_mixed = at(at_.d_mixed);
    // dS takes the place of S~, or of S where S~ is still wanted.
    args_.d_summaries = at(plan_.whole_blocks ? at_.summaries : at_.mixed);
    if (backward && plan_.pair_mixing) {
      args_.mixed = at(at_.summaries);
      args_.d_summaries = at(at_.d_mixed);
    }
    args_.carry = floats(at_.carry);
    args_.rows = plan_.given ? Rows::given : plan_.normalized ? Rows::dot : Rows::constant;
    args_.has_rows = plan_.normalized && !plan_.separate;
    if (plan_.normalized && !plan_.sums_inside) {
      args_.z = floats(at_.z);
      args_.z_read = floats(plan_.shared ? at_.z : at_.z_mixed);
      args_.dz_read = floats(at_.dz_read);
      args_.dz = floats(plan_.shared ? at_.dz_read : at_.dz);
      args_.row_base = floats(at_.row_base);
      args_.row_intra = floats(at_.row_intra);
      args_.row_den = floats(plan_.shared ? at_.row_mixed : at_.row_base);
      args_.row_inv = floats(at_.row_inv);
      args_.row_dden = floats(at_.row_dden);
      args_.row_e = floats(plan_.shared ? at_.row_e : at_.row_dden);
      if (backward && plan_.row_dots) args_.row_dots = floats(at_.row_dots);
      args_.row_count = plan_.group_pairs() * plan_.q_blocks * plan_.slots;
    }
    args_.causal = plan_.causal;
    args_.diagonal = floats(at_.diagonal);
    args_.diagonal_stride = plan_.matrices > 1 ? plan_.rows_padded : 0;
    args_.diagonal_terms = floats(at_.diagonal_terms);
  }

  LinearArgs& args() { return args_; }
  // The Hopper kernels work on these tensors if they can. NOTE: their backward has no rows whose
  // factors are given.
  void try_tiles(const ForwardInputs& inputs, const ForwardOutputs& outputs) {
    use_tiles_ = tiles_.take(inputs, outputs);
  }
  void try_tiles(const BackwardInputs& inputs, const BackwardOutputs& outputs) {
    use_tiles_ = !plan_.given && tiles_.take(inputs, outputs);
  }

  // The causal backward in one kernel, where there is one for these tensors.
  bool run_causal(const BackwardInputs& inputs, const BackwardOutputs& outputs) {
    if (!plan_.pair_mixing) return false;
    const CausalBackward whole(problem_, inputs, outputs,
                               {.first = at(at_.summaries),
                                .second = at(at_.d_mixed),
                                .slots = static_cast<int>(plan_.group_pairs()),
                                .dk = plan_.kernels->dk,
                                .dv_tile = plan_.kernels->dv});
    sums_ = whole.run(args_, pair_mix_args(outputs.d_mixing.defined()),
                      static_cast<unsigned*>(at(at_.counters)), stream_);
    return sums_ > 0;
  }

  void prepare_weights(const TensorView& mixing) {
    mixing_ = mixing;
    const sm90::SlabKernels* slabs = plan_.slabs.kernels;
    const bool needs_vectors = plan_.normalized && !plan_.sums_inside;
    if (slabs != nullptr && slabs->blocks <= sm90::kUnpreparedSlabs && !needs_vectors) return;
    const int rank = mixing.rank;
    start(plan_.types->prepare_weights,
          {.x = std::min<std::int64_t>(1024, static_cast<std::int64_t>(plan_.matrices) *
                                                 plan_.rows_padded * plan_.cols_padded / 256)},
          256, 0, stream_,
          PrepareArgs{.mixing = static_cast<const float*>(mixing.data),
                      .head_stride = rank == 3 ? mixing.strides[0] : 0,
                      .row_stride = mixing.strides[rank - 2],
                      .col_stride = mixing.strides[rank - 1],
                      .matrices = plan_.matrices,
                      .rows = plan_.rows,
                      .cols = plan_.cols,
                      .rows_padded = plan_.rows_padded,
                      .cols_padded = plan_.cols_padded,
                      .mask = static_cast<int>(problem_.mask),
                      .weights = at(at_.weights),
                      .weights_f32 = floats(at_.weights_f32),
                      .diagonal = floats(at_.diagonal)});
  }

  // Calls f with the pairs of each group in turn.
  template <typename F>
  void for_each_group(F&& f) {
    group_ = 0;
    for (std::int64_t b = 0; b < problem_.batch; b += plan_.group_batch) {
      for (std::int64_t h = 0; h < problem_.heads; h += plan_.group_heads, ++group_) {
        args_.batch_first = static_cast<int>(b);
        args_.head_first = static_cast<int>(h);
        args_.heads = static_cast<int>(
            std::min<std::int64_t>(plan_.group_heads, problem_.heads - h));
        batch_ = std::min<std::int64_t>(plan_.group_batch, problem_.batch - b);
        batch_group_ = b / plan_.group_batch;
        f();
      }
    }
  }

  // S, z, S~ and z~ of a group; denominators where they have kernels of their own.
  void summarize(bool backward = false) {
    LinearArgs args = args_;
    if (plan_.separate) args.z = nullptr;
    if (use_tiles_) tiles_.summaries(tile_group(), at(at_.summaries), args.z, stream_);
    else by_block(plan_.kernels->summaries, args, plan_.k_blocks, plan_.dv_tiles);
    if (plan_.separate) by_row_kernel(plan_.types->key_sums, plan_.k_blocks);
    if (backward && plan_.pair_mixing) return;  // S~ is made with dS
    mix(false, at_.summaries, at_.mixed);
    if (plan_.normalized && !plan_.shared && !plan_.sums_inside) {
      mix_vectors(false, at_.z, at_.z_mixed, plan_.kernels->dk);
    }
    if (!plan_.given) return;
    by_row_kernel(plan_.types->row_products, plan_.q_blocks);
    if (plan_.shared) mix_vectors(false, at_.row_base, at_.row_mixed, plan_.slots);
    if (args_.row_dots != nullptr) {
      by_block(plan_.kernels->row_dots, args_, plan_.q_blocks, plan_.dv_tiles);
    }
    by_row_kernel(plan_.types->row_factors, plan_.q_blocks);
  }

  void read_out() {
    if (use_tiles_) {
      return tiles_.readout(tile_group(), at(at_.mixed), plan_.given ? args_.row_inv : nullptr,
                            stream_);
    }
    if (plan_.whole_blocks) {
      return by_block(plan_.kernels->packed_readout_block, args_, plan_.q_blocks, 1);
    }
    by_block(plan_.packed_causal ? plan_.kernels->packed_readout_causal
             : plan_.causal      ? plan_.kernels->readout_causal
                                 : plan_.kernels->readout,
             args_, plan_.q_blocks, plan_.dv_tiles);
  }

  void go_back(bool weights) {
    if (use_tiles_) {
      tiles_.backward_q(tile_group(), at(at_.mixed), at(at_.d_mixed), stream_);
      if (weights) weight_gradient();
      mix(true, at_.d_mixed, at_.mixed);
      return tiles_.backward_kv(tile_group(), at(at_.mixed), stream_);
    }
    const LinearKernels& kernels = *plan_.kernels;
    if (plan_.whole_blocks) {  // dS~ is a summary of queries and d_o
      LinearArgs args = args_;
      args.k = args_.q;
      args.v = args_.d_o;
      args.k_table = args_.q_table;
      args.k_blocks = args_.q_blocks;
      args.summaries = args_.d_mixed;
      args.summary_scale = args_.scale;
      by_block(kernels.summaries, args, plan_.q_blocks, plan_.dv_tiles);
      if (plan_.pair_mixing) {
        mix_pair(weights);
      } else {
        if (weights) weight_gradient();
        mix(true, at_.d_mixed, at_.summaries);
      }
      return by_block(kernels.packed_backward_block, args_, plan_.q_blocks, 1);
    }
    if (plan_.given && plan_.shared) {
      mix_vectors(true, at_.row_dden, at_.row_e, plan_.slots);
    }
    by_block(plan_.packed_causal     ? kernels.packed_backward_q_causal
             : plan_.causal          ? kernels.backward_q_causal
             : plan_.packed_backward ? kernels.packed_backward_q
                                     : kernels.backward_q,
             args_, plan_.q_blocks, 1);
    if (plan_.separate) by_row_kernel(plan_.types->denominator_backward_q, plan_.q_blocks);
    if (plan_.normalized && !plan_.shared && !plan_.sums_inside) {
      mix_vectors(true, at_.dz_read, at_.dz, plan_.kernels->dk);
    }
    if (weights) weight_gradient();
    mix(true, at_.d_mixed, at_.mixed);
    by_block(plan_.packed_causal     ? kernels.packed_backward_kv_causal
             : plan_.causal          ? kernels.backward_kv_causal
             : plan_.packed_backward ? kernels.packed_backward_kv
                                     : kernels.backward_kv,
             args_, plan_.k_blocks, 1);
    if (plan_.separate && args_.d_k_den.data != nullptr) {
      by_row_kernel(plan_.types->denominator_backward_k, plan_.k_blocks);
    }
  }

  void reduce_weights(const TensorView& d_mixing) {
    const int rank = d_mixing.rank;
    const std::int64_t rows = d_mixing.shape[rank - 2], cols = d_mixing.shape[rank - 1];
    const int matrices = plan_.matrices;
    const std::int64_t blocks = (matrices * rows * cols + 31) / 32;
    const int shares = blocks > 512 ? 8 : 32;  // enough threads in all, few of them idle
    start(reduce_gradient_kernel(), {.x = blocks}, 32 * shares, 0, stream_,
          ReduceArgs{.partial = floats(at_.partial),
                     .partial_stride = partial_stride(),
                     .splits = sums_ > 0            ? sums_
                               : problem_.batch > 0 ? static_cast<int>(plan_.slots_of_sums())
                                                    : 0,
                     .shares = shares,
                     .rows_padded = plan_.gradient_rows,
                     .cols_padded = plan_.gradient_cols,
                     .mask = static_cast<int>(problem_.mask),
                     .used_rows = plan_.rows,
                     .used_cols = plan_.cols,
                     .d_mixing = static_cast<float*>(d_mixing.data),
                     .head_stride = rank == 3 ? d_mixing.strides[0] : 0,
                     .row_stride = d_mixing.strides[rank - 2],
                     .col_stride = d_mixing.strides[rank - 1],
                     .matrices = matrices,
                     .rows = static_cast<int>(rows),
                     .cols = static_cast<int>(cols),
                     .diagonal_terms = plan_.causal ? floats(at_.diagonal_terms) : nullptr,
                     .block_index = tables_.block_index.data(),
                     .batch = static_cast<int>(problem_.batch),
                     .heads = static_cast<int>(problem_.heads),
                     .blocks = plan_.q_blocks,
                     .per_head = problem_.mixing_per_head});
  }

 private:
  template <typename Args>
  void start(Kernel<Args> kernel, const Grid& grid, int threads, int bytes, Stream stream,
             const Args& args) {
    launch(kernel, grid, threads, bytes, stream, args, overlap_);
  }
  void* at(std::size_t offset) const { return base_ + offset; }
  float* floats(std::size_t offset) const { return reinterpret_cast<float*>(base_ + offset); }
  std::int64_t pairs() const { return batch_ * args_.heads; }
  sm90::TileGroup tile_group() const {
    return {.batch_first = args_.batch_first,
            .batch = static_cast<int>(batch_),
            .head_first = args_.head_first,
            .heads = args_.heads};
  }
  std::int64_t partial_stride() const {
    return static_cast<std::int64_t>(plan_.matrices) * plan_.gradient_rows * plan_.gradient_cols;
  }

  void by_block(const LinearKernel& kernel, LinearArgs args, int blocks, int tiles) {
    args.stages = stages_of(kernel, plan_);
    start(kernel.entry, {.x = args.heads * tiles, .y = blocks, .z = batch_}, kernel.threads,
          shared_bytes(kernel, args.stages), stream_, args);
  }
  void by_row_kernel(Kernel<LinearArgs> kernel, int blocks) {
    start(kernel, {.x = args_.heads, .y = blocks, .z = batch_}, kDenominatorThreads, 0, stream_,
          args_);
  }

  MixArgs mix_args(bool transposed, std::size_t in, std::size_t out, int entries) const {
    return {.tasks = transposed ? tables_.mix_transposed.data() : tables_.mix.data(),
            .weights = nullptr,
            .weights_stride = plan_.matrices > 1
                                  ? static_cast<std::int64_t>(plan_.rows_padded) * plan_.cols_padded
                                  : 0,
            .weights_ld = plan_.cols_padded,
            .in = at(in),
            .out = at(out),
            .in_blocks = transposed ? plan_.q_blocks : plan_.k_blocks,
            .out_blocks = transposed ? plan_.k_blocks : plan_.q_blocks,
            .entries = entries,
            .head_first = args_.head_first,
            .heads = args_.heads};
  }
  void mix(bool transposed, std::size_t in, std::size_t out) {
    MixArgs args = mix_args(transposed, in, out, plan_.entries);
    args.weights = at(at_.weights);
    const MixKernel& kernel = transposed ? *plan_.mix_transposed : *plan_.mix;
    args.task_count = transposed ? plan_.mix_transposed_tasks : plan_.mix_tasks;
    args.slabs_per_block = transposed ? plan_.mix_transposed_slabs : plan_.mix_slabs;
    const std::int64_t slabs = (plan_.entries + kernel.columns - 1) / kernel.columns;
    if (plan_.slabs.kernels != nullptr) return mix_slabs(transposed, in, out);
    if (plan_.resident != nullptr) return mix_resident(transposed, args);
    start(kernel.entry,
          {.x = pairs() * ((slabs + args.slabs_per_block - 1) / args.slabs_per_block) *
                args.task_count},
          kMixThreadsOfKernels, kernel.bytes, stream_, args);
  }
  void mix_slabs(bool transposed, std::size_t in, std::size_t out) {
    sm90::mix_slabs(plan_.slabs,
                    {.transposed = transposed,
                     .weights = at(at_.weights),
                     .rows = plan_.rows_padded,
                     .columns = plan_.cols_padded,
                     .mixing = mixing_,
                     .lower = problem_.mask != Mask::none,
                     .in = at(in),
                     .out = at(out),
                     .in_blocks = transposed ? plan_.q_blocks : plan_.k_blocks,
                     .out_blocks = transposed ? plan_.k_blocks : plan_.q_blocks,
                     .entries = plan_.entries,
                     .pairs = pairs()},
                    stream_);
  }
  void mix_resident(bool transposed, MixArgs args) {
    const MixKernel& kernel = transposed ? plan_.resident->mix_transposed : plan_.resident->mix;
    const std::int64_t slabs = (plan_.entries + kernel.columns - 1) / kernel.columns;
    args.task_count = static_cast<int>(pairs() * slabs);
    start(kernel.entry, {.x = std::min<std::int64_t>(args.task_count, kResidentGrid)},
          kMixThreadsOfKernels, kernel.bytes, stream_, args);
  }
  PairMixArgs pair_mix_args(bool weights) const {
    return {.weights = static_cast<const bf16*>(at(at_.weights)),
            .weights_ld = plan_.cols_padded,
            .summaries = static_cast<bf16*>(at(at_.summaries)),
            .gradients = static_cast<bf16*>(at(at_.d_mixed)),
            .pairs = static_cast<int>(pairs()),
            .blocks = plan_.q_blocks,
            .entries = plan_.entries,
            .slots = static_cast<int>(plan_.group_pairs()),
            .backwards = false,
            .partial = weights ? floats(at_.partial) : nullptr,
            .partial_stride = partial_stride(),
            .partial_ld = plan_.gradient_cols,
            .add = false};
  }
  void mix_pair(bool weights) {
    const PairMixKernel& kernel = pair_mix_kernel();
    PairMixArgs args = pair_mix_args(weights);
    args.backwards = true;
    args.add = group_ > 0;
    start(kernel.entry, {.x = plan_.splits}, kernel.threads, kernel.bytes, stream_, args);
  }
  void mix_vectors(bool transposed, std::size_t in, std::size_t out, int entries) {
    MixArgs args = mix_args(transposed, in, out, entries);
    args.weights = at(at_.weights_f32);
    const MixKernel& kernel = transposed ? *plan_.mix_transposed : *plan_.mix;
    start(mix_vectors_kernel(transposed),
          {.x = pairs() * ((entries + 127) / 128),
           .y = transposed ? plan_.mix_transposed_tasks : plan_.mix_tasks,
           .z = kernel.rows / kVectorRowsOfKernels},
          128, 0, stream_, args);
  }

  void weight_gradient() {
    const WeightGradientKernel& kernel = *plan_.weight_gradient;
    const std::int64_t slot = (plan_.matrices > 1 ? batch_group_ : group_) *
                              (plan_.splits + plan_.vector_splits);
    WeightGradientArgs args{.sequences = tables_.sequences.data(),
                            .sequence_count = tables_.sequences.size(),
                            .left = at(at_.d_mixed),
                            .right = at(at_.summaries),
                            .q_blocks = plan_.q_blocks,
                            .k_blocks = plan_.k_blocks,
                            .entries = plan_.entries,
                            .pairs = static_cast<int>(pairs()),
                            .heads = args_.heads,
                            .per_head = plan_.matrices > 1,
                            .lower_only = problem_.mask != Mask::none,
                            .partial = floats(at_.partial) + slot * partial_stride(),
                            .partial_stride = partial_stride(),
                            .rows_padded = plan_.gradient_rows,
                            .cols_padded = plan_.gradient_cols,
                            .matrix_first = plan_.matrices > 1 ? args_.head_first : 0,
                            .tiles_n = plan_.gradient_cols / kernel.tile};
    const std::int64_t matrices = plan_.matrices > 1 ? args_.heads : 1;
    if (plan_.slabs.kernels != nullptr && plan_.gradient_rows == sm90::kGradientSlabs) {
      sm90::weight_gradient_slabs({.left = at(at_.d_mixed),
                                   .right = at(at_.summaries),
                                   .left_blocks = plan_.q_blocks,
                                   .right_blocks = plan_.k_blocks,
                                   .entries = plan_.entries,
                                   .pairs = pairs(),
                                   .partial = args.partial,
                                   .splits = plan_.splits},
                                  stream_);
    } else {
      start(kernel.entry,
            {.x = plan_.splits,
             .y = static_cast<std::int64_t>(plan_.gradient_rows / kernel.tile) * args.tiles_n,
             .z = matrices},
            kernel.threads, kernel.bytes, stream_, args);
    }
    if (plan_.vector_splits == 0) return;
    args.left = at(plan_.shared ? at_.row_dden : at_.dz_read);
    args.right = at(plan_.shared ? at_.row_base : at_.z);
    args.entries = plan_.shared ? plan_.slots : plan_.kernels->dk;
    args.partial += plan_.splits * partial_stride();
    args.tiles_n = plan_.gradient_cols / kVectorGradientTile;
    start(vector_gradient_kernel(),
          {.x = plan_.vector_splits,
           .y = static_cast<std::int64_t>(plan_.gradient_rows / kVectorGradientTile) * args.tiles_n,
           .z = matrices},
          256, 0, stream_, args);
  }

  const Problem& problem_;
  const LinearPlan& plan_;
  const LinearTables& tables_;
  const LinearWorkspace at_;
  const bool overlap_;
  unsigned char* base_;
  Stream stream_;
  LinearArgs args_{};
  TensorView mixing_;
  sm90::TileCall tiles_;
  bool use_tiles_ = false;
  int sums_ = 0;  // partial sums of the weights' gradient that the one causal kernel left
  std::int64_t group_ = 0, batch_group_ = 0, batch_ = 0;
};

// Bytes over the rate that these kernels reached on an H200 (docs/kernels/linear.md), plus
// launches.
template <bool kTf32>
double predict_seconds(const Problem& problem, const PlanOptions&) {
  const LinearPlan plan = linear_plan(problem, kTf32);
  const double summaries = static_cast<double>(problem.batch * problem.heads) *
                           (2.0 * plan.k_blocks + 2.0 * plan.q_blocks) *
                           static_cast<double>(plan.entries) * plan.types->summary_size;
  const double rate = plan.tiles.kernels != nullptr  ? 3.9e12
                      : problem.dtype == DType::bf16 ? 2.5e12
                                                     : 0.8e12;
  constexpr double kLaunch = 3e-6;
  // Denominators that are not one dot product of the query at hand read q once more.
  const double rows = plan.given ? static_cast<double>(problem.batch * problem.heads *
                                                       problem.layout.tokens() * problem.dk) *
                                       static_cast<double>(size_of(problem.dtype))
                                 : 0;
  return (linear_cost(problem).forward_bytes + summaries + rows) / rate +
         kLaunch * static_cast<double>(4 * plan.groups() + (plan.given ? 3 : 0));
}

template <bool kTf32>
std::size_t forward_workspace(const Problem& problem, const PlanOptions&) {
  return linear_workspace(problem, linear_plan(problem, kTf32), false).bytes;
}
template <bool kTf32>
std::size_t backward_workspace(const Problem& problem, const PlanOptions&) {
  return linear_workspace(problem, linear_plan(problem, kTf32), true).bytes;
}

template <bool kTf32>
std::shared_ptr<const void> prepare(const Problem& problem) {
  const DeviceGuard guard(problem.device.index);
  auto prepared = std::make_shared<Prepared>();
  prepared->plan = linear_plan(problem, kTf32);
  prepared->overlap = compute_capability() >= 90;
  prepared->tables = linear_tables(problem, prepared->plan);
  const LinearPlan& plan = prepared->plan;
  const LinearKernels& k = *plan.kernels;
  for (const LinearKernel* kernel :
       {&k.summaries, &k.readout, &k.backward_q, &k.backward_kv, &k.packed_backward_q,
        &k.packed_backward_kv, &k.packed_readout_causal, &k.packed_backward_q_causal,
        &k.packed_backward_kv_causal, &k.packed_readout_block, &k.packed_backward_block,
        &k.readout_causal, &k.backward_q_causal, &k.backward_kv_causal, &k.row_dots}) {
    if (kernel->entry == nullptr) continue;
    const int bytes = shared_bytes(*kernel, stages_of(*kernel, plan));
    // Kernels for a whole block are left alone on devices where they do not fit: no plan uses them.
    const bool is_optional = kernel == &k.packed_readout_block ||
                             kernel == &k.packed_backward_block;
    if (is_optional && !plan.whole_blocks) continue;
    if (kernel == &k.row_dots && !plan.row_dots) continue;
    allow_shared(reinterpret_cast<const void*>(kernel->entry), bytes);
  }
  if (plan.resident != nullptr) {
    for (const MixKernel* kernel : {&plan.resident->mix, &plan.resident->mix_transposed}) {
      allow_shared(reinterpret_cast<const void*>(kernel->entry), kernel->bytes);
    }
  }
  for (const MixKernel* kernel : {plan.mix, plan.mix_transposed}) {
    allow_shared(reinterpret_cast<const void*>(kernel->entry), kernel->bytes);
  }
  if (plan.pair_mixing) {
    const PairMixKernel& kernel = pair_mix_kernel();
    allow_shared(reinterpret_cast<const void*>(kernel.entry), kernel.bytes);
  }
  allow_shared(reinterpret_cast<const void*>(plan.weight_gradient->entry),
               plan.weight_gradient->bytes);
  sm90::allow_tiles(plan.tiles);
  sm90::allow_slabs(plan.slabs);
  return prepared;
}

void forward(const PlanData& data, const ForwardInputs& inputs, const ForwardOutputs& outputs,
             const Workspace& workspace, Stream stream) {
  const DeviceGuard guard(data.problem.device.index);
  Call call(data, workspace, stream, false);
  LinearArgs& args = call.args();
  args.q = row_tensor(inputs.q);
  args.k = row_tensor(inputs.k);
  args.v = row_tensor(inputs.v);
  args.o = row_tensor(outputs.o);
  const bool separate = data.problem.separate_denominator;
  args.q_den = separate ? row_tensor(inputs.q_den) : args.q;
  args.k_den = separate ? row_tensor(inputs.k_den) : args.k;
  call.try_tiles(inputs, outputs);
  call.prepare_weights(inputs.mixing);
  call.for_each_group([&] {
    call.summarize();
    call.read_out();
  });
}

void backward(const PlanData& data, const BackwardInputs& inputs, const BackwardOutputs& outputs,
              const Workspace& workspace, Stream stream) {
  const DeviceGuard guard(data.problem.device.index);
  Call call(data, workspace, stream, true);
  LinearArgs& args = call.args();
  args.q = row_tensor(inputs.q);
  args.k = row_tensor(inputs.k);
  args.v = row_tensor(inputs.v);
  args.o = row_tensor(inputs.o);
  args.d_o = row_tensor(inputs.d_o);
  args.d_q = row_tensor(outputs.d_q);
  args.d_k = row_tensor(outputs.d_k);
  args.d_v = row_tensor(outputs.d_v);
  const bool separate = data.problem.separate_denominator;
  args.q_den = separate ? row_tensor(inputs.q_den) : args.q;
  args.k_den = separate ? row_tensor(inputs.k_den) : args.k;
  args.d_q_den = row_tensor(outputs.d_q_den);
  args.d_k_den = row_tensor(outputs.d_k_den);
  const bool weights = outputs.d_mixing.defined();
  call.try_tiles(inputs, outputs);
  call.prepare_weights(inputs.mixing);
  if (!call.run_causal(inputs, outputs)) {
    call.for_each_group([&] {
      call.summarize(true);
      call.go_back(weights);
    });
  }
  if (weights) call.reduce_weights(outputs.d_mixing);
}

template <bool kTf32>
std::string kernels(const Problem& problem) {
  return kernels_text(problem, linear_plan(problem, kTf32));
}

constexpr Implementation kLinear{.name = "cuda.linear",
                                 .refuses = linear_refuses,
                                 .predict_seconds = predict_seconds<false>,
                                 .forward_workspace = forward_workspace<false>,
                                 .backward_workspace = backward_workspace<false>,
                                 .forward = forward,
                                 .backward = backward,
                                 .prepare = prepare<false>,
                                 .kernels = kernels<false>};

std::optional<std::string> tf32_refuses(const Problem& problem) {
  if (problem.dtype != DType::f32) return "TF32 is for f32 inputs";
  return linear_refuses(problem);
}

constexpr Implementation kTf32{
    .name = "cuda.tf32",
    .refuses = tf32_refuses,
    .predict_seconds = predict_seconds<true>,
    .forward_workspace = forward_workspace<true>,
    .backward_workspace = backward_workspace<true>,
    .forward = forward,
    .backward = backward,
    .prepare = prepare<true>,
    .kernels = kernels<true>,
    .only_by_name = "rounds products to TF32: must be asked for by name"};

}  // namespace

const Implementation& linear_implementation() { return kLinear; }
const Implementation& tf32_implementation() { return kTf32; }

}  // namespace mhla::cuda
