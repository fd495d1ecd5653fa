// Allocation and contents of benchmark tensors.
#include "cli/bench_data.h"

#include <cmath>
#include <cstring>

#include "mhla/core/half.h"
#include "mhla/verify/random.h"

namespace mhla::cli {
namespace {

// Nearly normal with variance one, a multiple of 1/64 below 4: eight bits, exact in bf16 and f16.
float random_value(verify::Random& random) {
  const std::uint64_t bits = random.bits();
  constexpr double kMean = 2 * 65535.0, kScale = 1.7320508 / 65536;  // of four 16-bit uniforms
  const double sum = static_cast<double>((bits & 0xffff) + ((bits >> 16) & 0xffff) +
                                         ((bits >> 32) & 0xffff) + (bits >> 48));
  return static_cast<float>(std::nearbyint((sum - kMean) * kScale * 64) / 64);
}

MixingMatrix start_weights(const Problem& problem) {
  return problem.mask == Mask::none ? MixingMatrix::locality(problem.layout)
                                    : MixingMatrix::causal_uniform(problem.layout);
}

std::byte* bytes_of(const verify::Allocation& memory) {
  return static_cast<std::byte*>(memory.get());
}

constexpr int kPoison = 0xff;  // NaN in every dtype

}  // namespace

TensorView one_head(const TensorView& tensor, std::int64_t batch, std::int64_t head,
                    std::int64_t tokens) {
  TensorView part = tensor;
  const std::int64_t offset = batch * tensor.strides[0] + head * tensor.strides[2];
  part.data = static_cast<std::byte*>(tensor.data) +
              offset * static_cast<std::int64_t>(size_of(tensor.dtype));
  part.shape = {1, tokens, 1, tensor.shape[3]};
  return part;
}

void fill_random(const TensorView& tensor, std::uint64_t seed) {
  verify::Random random(seed);
  with_dtype(tensor.dtype, [&]<typename T>(T) {
    for (std::int64_t b = 0; b < tensor.shape[0]; ++b) {
      for (std::int64_t n = 0; n < tensor.shape[1]; ++n) {
        for (std::int64_t h = 0; h < tensor.shape[2]; ++h) {
          T* row = static_cast<T*>(tensor.data) + b * tensor.strides[0] + n * tensor.strides[1] +
                   h * tensor.strides[2];
          for (std::int64_t d = 0; d < tensor.shape[3]; ++d) {
            row[d] = from_float<T>(random_value(random));
          }
        }
      }
    }
  });
}

BenchData::BenchData(const Problem& problem, bool fused) : weights_(start_weights(problem)) {
  place(problem, fused, inputs_, q, k, v);
  place(problem, fused, gradients_, d_q, d_k, d_v);
  const std::int64_t tokens = problem.layout.tokens();
  o = d_o = TensorView::contiguous(nullptr, problem.dtype,
                                   {problem.batch, tokens, problem.heads, problem.dv});
  o_bytes_ = static_cast<std::size_t>(o.size()) * size_of(problem.dtype);
  gradient_bytes_ = static_cast<std::size_t>(d_q.size() + d_k.size() + d_v.size()) *
                    size_of(problem.dtype);
  o_ = verify::allocate(verify::host_memory(), o_bytes_);
  d_o_ = verify::allocate(verify::host_memory(), o_bytes_);
  o.data = o_.get();
  d_o.data = d_o_.get();
  mixing = weights_.view();
  mixing_bytes_ = static_cast<std::size_t>(mixing.size()) * sizeof(float);
  d_mixing_ = verify::allocate(verify::host_memory(), mixing_bytes_);
  d_mixing = TensorView::contiguous(d_mixing_.get(), DType::f32,
                                    {mixing.shape[0], mixing.shape[1]});
  fill_random(q, 1);
  fill_random(k, 2);
  fill_random(v, 3);
  fill_output_gradient(tokens);
  poison_outputs();
}

void BenchData::place(const Problem& problem, bool fused, verify::Allocation& memory, TensorView& a,
                      TensorView& b, TensorView& c) {
  const std::int64_t tokens = problem.layout.tokens(), heads = problem.heads;
  const auto shaped = [&](std::int64_t width) {
    return TensorView::contiguous(nullptr, problem.dtype, {problem.batch, tokens, heads, width});
  };
  a = b = shaped(problem.dk);
  c = shaped(problem.dv);
  const std::int64_t element = static_cast<std::int64_t>(size_of(problem.dtype));
  const std::int64_t total = (a.size() + b.size() + c.size()) * element;
  memory = verify::allocate(verify::host_memory(), static_cast<std::size_t>(total));
  const std::int64_t row = heads * (2 * problem.dk + problem.dv);  // of one token, fused
  const std::int64_t second = fused ? heads * problem.dk : a.size();
  a.data = bytes_of(memory);
  b.data = bytes_of(memory) + second * element;
  c.data = bytes_of(memory) + 2 * second * element;
  if (!fused) return;
  for (TensorView* view : {&a, &b, &c}) {
    view->strides[0] = tokens * row;
    view->strides[1] = row;
  }
}

void BenchData::poison_outputs() {
  std::memset(o.data, kPoison, o_bytes_);
  std::memset(gradients_.get(), kPoison, gradient_bytes_);
  std::memset(d_mixing.data, kPoison, mixing_bytes_);
}

void BenchData::fill_output_gradient(std::int64_t tokens) {
  fill_random(d_o, 4);
  const std::size_t row = static_cast<std::size_t>(d_o.strides[1]) * size_of(d_o.dtype);
  const std::size_t kept = static_cast<std::size_t>(tokens) * row;
  const std::size_t batch = static_cast<std::size_t>(d_o.shape[1]) * row;
  for (std::int64_t b = 0; b < d_o.shape[0]; ++b) {
    std::byte* start = bytes_of(d_o_) + static_cast<std::size_t>(b) * batch;
    std::memset(start + kept, 0, batch - kept);
  }
}

}  // namespace mhla::cli
