// The Hopper kernels of cuda.linear: which problems they serve, and their launches.
#include "mhla/cuda/sm90/linear_launch.h"

#include <algorithm>

#include "mhla/cuda/arguments.h"
#include "mhla/cuda/runtime.h"
#include "mhla/cuda/sm90/linear_maps.h"
#include "mhla/error.h"

namespace mhla::cuda::sm90 {
namespace {

// 0 where the device is another one.
int hopper_multiprocessors(int device) {
  return code_version(device) >= 90 ? multiprocessors(device) : 0;
}

int slots_of(const TileLayout& layout) {
  const int places = layout.box[0] * layout.box[1] * layout.box[2];
  return (places + kSlotPad - 1) / kSlotPad * kSlotPad;
}

}  // namespace

TilePlan tile_plan(const Problem& problem) {
  if (problem.dk != problem.dv || problem.dtype != DType::bf16 || problem.mask == Mask::causal) {
    return {};
  }
  const TileKernels* kernels = problem.dk == 32 && problem.heads % 2 == 0 ? &tile_kernels_32()
                               : problem.dk == 64                         ? &tile_kernels_64()
                               : problem.dk == 128                        ? &tile_kernels_128()
                                                                          : nullptr;
  const int multiprocessors = hopper_multiprocessors(problem.device.index);
  const auto q = tile_layout(problem.layout), k = tile_layout(problem.keys());
  if (kernels == nullptr || multiprocessors == 0 || !q || !k) return {};
  return {.kernels = kernels, .q = *q, .k = *k, .multiprocessors = multiprocessors};
}

void allow_tiles(const TilePlan& plan) {
  if (plan.kernels == nullptr) return;
  const TileKernels& all = *plan.kernels;
  for (const TileKernel* kernel :
       {&all.summaries, &all.readout, &all.backward_q, &all.backward_kv, &all.rows,
        &all.backward_rows, &all.backward_q_given, &all.backward_kv_given}) {
    allow_shared(reinterpret_cast<const void*>(kernel->entry), kernel->bytes);
  }
}

SlabPlan slab_plan(int device, int blocks) {
  const int multiprocessors = hopper_multiprocessors(device);
  const bool few = blocks > 16 && blocks <= 64, many = blocks > 96 && blocks <= 256;
  if (multiprocessors == 0 || !(few || many)) return {};
  return {.kernels = &slab_kernels(blocks), .multiprocessors = multiprocessors};
}

void allow_slabs(const SlabPlan& plan) {
  if (plan.kernels == nullptr) return;
  for (const SlabKernel* kernel : {&plan.kernels->mix, &plan.kernels->mix_transposed}) {
    allow_shared(reinterpret_cast<const void*>(kernel->entry), kernel->bytes);
  }
  allow_shared(reinterpret_cast<const void*>(slab_gradient().entry), slab_gradient().bytes);
}

void mix_slabs(const SlabPlan& plan, const SlabMix& mix, Stream stream) {
  const SlabKernel& kernel = mix.transposed ? plan.kernels->mix_transposed : plan.kernels->mix;
  const auto slabs = (mix.entries + 63) / 64;
  const int blocks = plan.kernels->blocks;
  SlabArgs args{};
  args.in = matrix_map(mix.in, mix.entries, mix.in_blocks, mix.pairs, blocks);
  args.out = matrix_map(mix.out, mix.entries, mix.out_blocks, mix.pairs, blocks);
  args.pairs = static_cast<int>(mix.pairs);
  args.slabs = static_cast<int>(slabs);
  args.by_slabs = Divisor(args.slabs);
  if (blocks > kUnpreparedSlabs) {
    args.weights = matrix_map(mix.weights, mix.columns, mix.rows, 1, blocks);
  } else {
    const int rank = mix.mixing.rank;
    args.mixing = static_cast<const float*>(mix.mixing.data);
    args.row_stride = mix.mixing.strides[rank - 2];
    args.column_stride = mix.mixing.strides[rank - 1];
    args.rows = static_cast<int>(mix.transposed ? mix.in_blocks : mix.out_blocks);
    args.columns = static_cast<int>(mix.transposed ? mix.out_blocks : mix.in_blocks);
    args.lower = mix.lower ? 1 : 0;
    args.early = mix.early ? 1 : 0;
  }
  launch(kernel.entry, {.x = std::min<std::int64_t>(mix.pairs * slabs, plan.multiprocessors)},
         kernel.threads, kernel.bytes, stream, args, true);
}

void weight_gradient_slabs(const SlabGradient& g, Stream stream) {
  const SlabGradientKernel& kernel = slab_gradient();
  const SlabGradientArgs args{
      .left = matrix_map(g.left, g.entries, g.left_blocks, g.pairs, kernel.left_rows),
      .right = matrix_map(g.right, g.entries, g.right_blocks, g.pairs, kernel.right_rows),
      .pairs = static_cast<int>(g.pairs),
      .slabs = static_cast<int>((g.entries + 63) / 64),
      .partial = g.partial};
  launch(kernel.entry, {.x = g.splits}, kernel.threads, kernel.bytes, stream, args, true);
}

TileCall::TileCall(const Problem& problem, const TilePlan& plan, int entries, bool normalized)
    : plan_(plan) {
  common_.entries = entries;
  common_.map = feature_map(problem.feature_map, problem.dtype);
  common_.scale = static_cast<float>(problem.scale);
  common_.eps = static_cast<float>(problem.denominator_eps());
  common_.normalized = normalized ? 1 : 0;
}

bool TileCall::take(Tensor& tensor, const TensorView& view, const TileLayout& layout) const {
  if (!view.defined()) return true;
  TensorView tiles = view;  // two heads as one
  if (plan_.kernels->heads == 2) {
    if (view.strides[2] != view.shape[3]) return false;
    tiles.shape[2] /= 2;
    tiles.shape[3] *= 2;
    tiles.strides[2] *= 2;
  }
  tensor.defined = true;
  for (int kind = 0; kind < layout.kinds; ++kind) {
    const auto map = slice_map(tiles, layout, kind);
    if (!map) return false;
    tensor.maps[kind] = *map;
  }
  return true;
}

bool TileCall::take(const ForwardInputs& inputs, const ForwardOutputs& outputs) {
  return plan_.kernels != nullptr && take(q_, inputs.q, plan_.q) && take(k_, inputs.k, plan_.k) &&
         take(v_, inputs.v, plan_.k) && take(o_, outputs.o, plan_.q);
}

bool TileCall::take(const BackwardInputs& inputs, const BackwardOutputs& outputs) {
  return plan_.kernels != nullptr && take(q_, inputs.q, plan_.q) && take(k_, inputs.k, plan_.k) &&
         take(v_, inputs.v, plan_.k) && take(d_o_, inputs.d_o, plan_.q) &&
         take(d_q_, outputs.d_q, plan_.q) && take(d_k_, outputs.d_k, plan_.k) &&
         take(d_v_, outputs.d_v, plan_.k);
}

TileArgs TileCall::args(const TileGroup& group, const TileLayout& layout) const {
  TileArgs args = common_;
  args.layout = layout;
  args.batch_first = group.batch_first;
  args.head_first = group.head_first / plan_.kernels->heads;
  args.heads = group.heads / plan_.kernels->heads;
  args.by_heads = Divisor(args.heads);
  args.tasks = layout.blocks * group.batch * args.heads;
  args.slots = slots_of(layout);
  return args;
}

void TileCall::start(const TileKernel& kernel, const TileArgs& args, Stream stream) const {
  const int grid = std::min(args.tasks, kernel.thread_blocks * plan_.multiprocessors);
  launch(kernel.entry, {.x = grid}, kernel.threads, kernel.bytes, stream, args, true);
}

void TileCall::put(TensorMap (&maps)[2], const Tensor& tensor) const {
  for (int kind = 0; kind < 2; ++kind) maps[kind] = tensor.maps[kind];
}

void TileCall::summaries(const TileGroup& group, void* s, float* key_sums, Stream stream) const {
  TileArgs all = args(group, plan_.k);
  put(all.in[0], k_);
  put(all.in[1], v_);
  all.summaries_out = s;
  all.vectors_out = key_sums;
  start(plan_.kernels->summaries, all, stream);
}

void TileCall::readout(const TileGroup& group, const void* mixed, const float* factors,
                       Stream stream) const {
  TileArgs all = args(group, plan_.q);
  put(all.in[0], q_);
  put(all.out[0], o_);
  all.has_out[0] = 1;
  all.summaries_in = mixed;
  all.factors = factors;
  start(plan_.kernels->readout, all, stream);
}

void TileCall::backward_q(const TileGroup& group, const void* mixed, void* d_mixed,
                          const TileRows* rows, Stream stream) const {
  TileArgs all = args(group, plan_.q);
  put(all.in[0], q_);
  put(all.in[1], d_o_);
  put(all.out[0], d_q_);
  all.has_out[0] = d_q_.defined ? 1 : 0;
  all.summaries_in = mixed;
  all.summaries_out = d_mixed;
  if (rows == nullptr) return start(plan_.kernels->backward_q, all, stream);
  all.vectors = rows->z;
  all.vectors_out = rows->dz;
  all.factors = rows->factor;
  all.row_e = rows->e;
  start(plan_.kernels->backward_q_given, all, stream);
}

void TileCall::backward_kv(const TileGroup& group, const void* d_summaries, const TileRows* rows,
                           Stream stream) const {
  TileArgs all = args(group, plan_.k);
  put(all.in[0], k_);
  put(all.in[1], v_);
  put(all.out[0], d_k_);
  put(all.out[1], d_v_);
  all.has_out[0] = d_k_.defined ? 1 : 0;
  all.has_out[1] = d_v_.defined ? 1 : 0;
  all.summaries_in = d_summaries;
  if (rows == nullptr) return start(plan_.kernels->backward_kv, all, stream);
  all.vectors = rows->dz;
  start(plan_.kernels->backward_kv_given, all, stream);
}

RowMixArgs TileCall::row_mix_args(const TileGroup& group, const TileRows& rows) const {
  RowMixArgs mix{};
  mix.weights = rows.weights;
  mix.weights_stride = rows.weights_stride;
  mix.weights_ld = rows.weights_ld;
  mix.head_first = group.head_first;
  mix.heads = group.heads;
  mix.layout = plan_.q;
  mix.slots = slots_of(plan_.q);
  mix.scale = common_.scale;
  mix.eps = common_.eps;
  return mix;
}

void TileCall::mix_rows(void (*kernel)(RowMixArgs), const TileGroup& group, const RowMixArgs& args,
                        Stream stream) const {
  const RowMixKernels& of = row_mix_kernels();
  const std::int64_t pairs = static_cast<std::int64_t>(group.batch) * group.heads;
  launch(kernel,
         {.x = pairs * ((args.slots + of.columns - 1) / of.columns),
          .y = (args.layout.blocks + of.rows - 1) / of.rows},
         of.threads, 0, stream, args, true);
}

void TileCall::row_factors(const TileGroup& group, const void* mixed, const TileRows& rows,
                           Stream stream) const {
  const bool backward = mixed != nullptr;
  TileArgs all = args(group, plan_.q);
  put(all.in[0], q_);
  put(all.in[1], d_o_);
  all.summaries_in = mixed;
  all.vectors = rows.z;
  all.row_base = rows.base;
  all.row_dots = rows.dots;
  start(backward ? plan_.kernels->backward_rows : plan_.kernels->rows, all, stream);
  RowMixArgs mix = row_mix_args(group, rows);
  mix.in = rows.base;
  mix.out = rows.factor;
  mix.dots = backward ? rows.dots : nullptr;
  mix.dden = rows.dden;
  mix_rows(row_mix_kernels().factors, group, mix, stream);
}

void TileCall::row_gradients(const TileGroup& group, const TileRows& rows, Stream stream) const {
  RowMixArgs mix = row_mix_args(group, rows);
  mix.in = rows.dden;
  mix.out = rows.e;
  mix_rows(row_mix_kernels().transposed, group, mix, stream);
}

}  // namespace mhla::cuda::sm90
