// The emulator has no copy engine: the portable kernels serve every problem.
#include "mhla/cuda/causal.h"
#include "mhla/cuda/sm90/linear_launch.h"

namespace mhla::cuda::sm90 {

TilePlan tile_plan(const Problem&) { return {}; }
void allow_tiles(const TilePlan&) {}
SlabPlan slab_plan(int, int) { return {}; }
void allow_slabs(const SlabPlan&) {}
void mix_slabs(const SlabPlan&, const SlabMix&, Stream) {}
void weight_gradient_slabs(const SlabGradient&, Stream) {}

TileCall::TileCall(const Problem&, const TilePlan& plan, int, bool) : plan_(plan) {}
bool TileCall::take(const ForwardInputs&, const ForwardOutputs&) { return false; }
bool TileCall::take(const BackwardInputs&, const BackwardOutputs&) { return false; }
void TileCall::summaries(const TileGroup&, void*, float*, Stream) const {}
void TileCall::readout(const TileGroup&, const void*, const float*, Stream) const {}
void TileCall::backward_q(const TileGroup&, const void*, void*, Stream) const {}
void TileCall::backward_kv(const TileGroup&, const void*, Stream) const {}

}  // namespace mhla::cuda::sm90

namespace mhla::cuda {

CausalBackward::CausalBackward(const Problem&, const BackwardInputs&, const BackwardOutputs&,
                               const Summaries&) {}
int CausalBackward::run(const LinearArgs&, const PairMixArgs&, unsigned*, Stream) const {
  return 0;
}

}  // namespace mhla::cuda
