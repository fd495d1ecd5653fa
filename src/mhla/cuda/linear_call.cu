// The launches of a call of the linear form.
#include "mhla/cuda/linear_call.h"

#include "mhla/cuda/causal.h"

namespace mhla::cuda {

LinearCall::LinearCall(const PlanData& data, const Workspace& workspace, Stream stream,
                       bool backward)
    : problem_(data.problem),
      plan_(static_cast<const LinearPrepared*>(data.prepared.get())->plan),
      tables_(static_cast<const LinearPrepared*>(data.prepared.get())->tables),
      at_(linear_workspace(problem_, plan_, backward)),
      overlap_(static_cast<const LinearPrepared*>(data.prepared.get())->overlap),
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

bool LinearCall::run_causal(const BackwardInputs& inputs, const BackwardOutputs& outputs) {
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

void LinearCall::prepare_weights(const TensorView& mixing) {
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

void LinearCall::summarize(bool backward) {
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
  if (use_tiles_ && shares_rows()) {
    return tiles_.row_factors(tile_group(), backward ? at(at_.mixed) : nullptr, tile_rows(),
                              stream_);
  }
  by_row_kernel(plan_.types->row_products, plan_.q_blocks);
  if (plan_.shared) mix_vectors(false, at_.row_base, at_.row_mixed, plan_.slots);
  if (args_.row_dots != nullptr) {
    by_block(plan_.kernels->row_dots, args_, plan_.q_blocks, plan_.dv_tiles);
  }
  by_row_kernel(plan_.types->row_factors, plan_.q_blocks);
}

void LinearCall::read_out() {
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

void LinearCall::go_back(bool weights) {
  if (use_tiles_) {
    const sm90::TileRows all_rows = tile_rows();
    const sm90::TileRows* rows = shares_rows() ? &all_rows : nullptr;
    if (rows != nullptr) tiles_.row_gradients(tile_group(), *rows, stream_);
    tiles_.backward_q(tile_group(), at(at_.mixed), at(at_.d_mixed), rows, stream_);
    if (weights) weight_gradient();
    const std::size_t d_summaries = plan_.mixes_in_place ? at_.d_mixed : at_.mixed;
    mix(true, at_.d_mixed, d_summaries);
    return tiles_.backward_kv(tile_group(), at(d_summaries), rows, stream_);
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

void LinearCall::reduce_weights(const TensorView& d_mixing) {
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

sm90::TileRows LinearCall::tile_rows() const {
  return {.z = floats(at_.z),
          .dz = floats(at_.dz_read),
          .base = floats(at_.row_base),
          .e = floats(at_.row_e),
          .factor = floats(at_.row_inv),
          .dden = floats(at_.row_dden),
          .dots = floats(at_.row_dots),
          .weights = floats(at_.weights_f32),
          .weights_stride = weights_stride(),
          .weights_ld = plan_.cols_padded};
}

void LinearCall::by_block(const LinearKernel& kernel, LinearArgs args, int blocks, int tiles) {
  args.stages = stages_of(kernel, plan_);
  start(kernel.entry, {.x = args.heads * tiles, .y = blocks, .z = batch_}, kernel.threads,
        shared_bytes(kernel, args.stages), stream_, args);
}

void LinearCall::by_row_kernel(Kernel<LinearArgs> kernel, int blocks) {
  start(kernel, {.x = args_.heads, .y = blocks, .z = batch_}, kDenominatorThreads, 0, stream_,
        args_);
}

MixArgs LinearCall::mix_args(bool transposed, std::size_t in, std::size_t out, int entries) const {
  return {.tasks = transposed ? tables_.mix_transposed.data() : tables_.mix.data(),
          .weights = nullptr,
          .weights_stride = weights_stride(),
          .weights_ld = plan_.cols_padded,
          .in = at(in),
          .out = at(out),
          .in_blocks = transposed ? plan_.q_blocks : plan_.k_blocks,
          .out_blocks = transposed ? plan_.k_blocks : plan_.q_blocks,
          .entries = entries,
          .head_first = args_.head_first,
          .heads = args_.heads};
}

void LinearCall::mix(bool transposed, std::size_t in, std::size_t out) {
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

void LinearCall::mix_slabs(bool transposed, std::size_t in, std::size_t out) {
  sm90::mix_slabs(plan_.slabs,
                  {.transposed = transposed,
                   .weights = at(at_.weights),
                   .rows = plan_.rows_padded,
                   .columns = plan_.cols_padded,
                   .mixing = mixing_,
                   .lower = problem_.mask != Mask::none,
                   .early = use_tiles_,
                   .in = at(in),
                   .out = at(out),
                   .in_blocks = transposed ? plan_.q_blocks : plan_.k_blocks,
                   .out_blocks = transposed ? plan_.k_blocks : plan_.q_blocks,
                   .entries = plan_.entries,
                   .pairs = pairs()},
                  stream_);
}

void LinearCall::mix_resident(bool transposed, MixArgs args) {
  const MixKernel& kernel = transposed ? plan_.resident->mix_transposed : plan_.resident->mix;
  const std::int64_t slabs = (plan_.entries + kernel.columns - 1) / kernel.columns;
  args.task_count = static_cast<int>(pairs() * slabs);
  start(kernel.entry, {.x = std::min<std::int64_t>(args.task_count, kResidentGrid)},
        kMixThreadsOfKernels, kernel.bytes, stream_, args);
}

PairMixArgs LinearCall::pair_mix_args(bool weights) const {
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

void LinearCall::mix_pair(bool weights) {
  const PairMixKernel& kernel = pair_mix_kernel();
  PairMixArgs args = pair_mix_args(weights);
  args.backwards = true;
  args.add = group_ > 0;
  start(kernel.entry, {.x = plan_.splits}, kernel.threads, kernel.bytes, stream_, args);
}

void LinearCall::mix_vectors(bool transposed, std::size_t in, std::size_t out, int entries) {
  MixArgs args = mix_args(transposed, in, out, entries);
  args.weights = at(at_.weights_f32);
  const MixKernel& kernel = transposed ? *plan_.mix_transposed : *plan_.mix;
  start(mix_vectors_kernel(transposed),
        {.x = pairs() * ((entries + 127) / 128),
         .y = transposed ? plan_.mix_transposed_tasks : plan_.mix_tasks,
         .z = kernel.rows / kVectorRowsOfKernels},
        128, 0, stream_, args);
}

void LinearCall::weight_gradient() {
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
          {.x = static_cast<std::int64_t>(plan_.gradient_rows / kernel.tile) * args.tiles_n,
           .y = plan_.splits,
           .z = matrices},
          kernel.threads, kernel.bytes, stream_, args);
  }
  if (plan_.vector_splits == 0) return;
  args.left = at(plan_.shared ? at_.row_dden : at_.dz_read);
  args.right = at(plan_.shared ? at_.row_base : at_.z);
  args.entries = plan_.shared ? plan_.slots : plan_.kernels->dk;
  args.partial += plan_.splits * partial_stride();
  const sm90::RowMixKernels& rows = sm90::row_mix_kernels();
  const bool by_rows = use_tiles_ && shares_rows();
  const int tile = by_rows ? rows.gradient_tile : kVectorGradientTile;
  args.tiles_n = (plan_.gradient_cols + tile - 1) / tile;
  start(by_rows ? rows.gradient : vector_gradient_kernel(),
        {.x = static_cast<std::int64_t>((plan_.gradient_rows + tile - 1) / tile) * args.tiles_n,
         .y = plan_.vector_splits,
         .z = matrices},
        256, 0, stream_, args);
}

}  // namespace mhla::cuda
