// The tensors of one benchmark case, as a model has them: slices of fused projections.
#pragma once

#include <cstdint>

#include "mhla/mhla.h"
#include "mhla/verify/memory.h"

namespace mhla::cli {

// Inputs have the same values in every dtype, so that one f64 truth serves them all.
class BenchData {
 public:
  BenchData(const Problem& problem, bool fused);

  ForwardInputs inputs() const { return {.q = q, .k = k, .v = v, .mixing = mixing}; }
  ForwardOutputs outputs() const { return {.o = o}; }
  BackwardInputs backward_inputs() const {
    return {.q = q, .k = k, .v = v, .mixing = mixing, .o = o, .d_o = d_o};
  }
  BackwardOutputs gradients() const {
    return {.d_q = d_q, .d_k = d_k, .d_v = d_v, .d_mixing = d_mixing};
  }

  void poison_outputs();                           // o and all gradients become NaN
  void fill_output_gradient(std::int64_t tokens);  // random up to that token, then zero

  TensorView q, k, v, mixing, o, d_o, d_q, d_k, d_v, d_mixing;

 private:
  // Three [B, N, H, width] tensors in one buffer, side by side in a token's row or one after
  // another.
  void place(const Problem& problem, bool fused, verify::Allocation& memory, TensorView& a,
             TensorView& b, TensorView& c);

  MixingMatrix weights_;
  verify::Allocation inputs_, gradients_, o_, d_o_, d_mixing_;
  std::size_t gradient_bytes_ = 0, o_bytes_ = 0, mixing_bytes_ = 0;
};

// One head of one batch entry and the first `tokens` tokens of [B, N, H, D].
TensorView one_head(const TensorView& tensor, std::int64_t batch, std::int64_t head,
                    std::int64_t tokens);

// Seeded values that f32, bf16 and f16 hold exactly. `tensor` is [B, N, H, D] in host memory.
void fill_random(const TensorView& tensor, std::uint64_t seed);

}  // namespace mhla::cli
