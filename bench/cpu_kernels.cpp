// Times the CPU kernels at the shapes of the models: GFLOP/s beside the peak of their inner loop.
//
// Arguments: [-f] [@target] [word...]. -f leaves out the backward pass, @AVX2 takes another
// instruction set; only shapes whose line contains every word are timed (wan, f32, 2t).
// "forms" alone: both forms over short sequences, and which of them plan() takes.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "mhla/core/half.h"
#include "mhla/cpu/kernels.h"
#include "mhla/mhla.h"

namespace {

using mhla::BlockLayout;
using mhla::DType;
using mhla::Problem;
using mhla::TensorView;

struct Shape {
  const char* name;
  Problem problem;
};

std::vector<Shape> shapes() {
  using mhla::Mask;
  using mhla::Normalizer;
  const auto vision = [](std::int64_t batch, std::int64_t heads, std::int64_t d,
                         BlockLayout layout) {
    return Problem{.batch = batch, .heads = heads, .dk = d, .dv = d, .layout = std::move(layout)};
  };
  const auto lm = [](std::int64_t tokens) {
    return Problem{.heads = 4,
                   .dk = 128,
                   .dv = 256,
                   .layout = BlockLayout::sequence(tokens, {.block = {64}}),
                   .mask = Mask::causal,
                   .normalizer = Normalizer::none};
  };
  return {
      {"deit-t", vision(8, 3, 64, BlockLayout::grid({16, 16}, {.block = {4, 4}}))},
      {"dit-s-512", vision(4, 6, 64, BlockLayout::grid({32, 32}, {.block = {8, 8}}))},
      {"vlt", vision(2, 2, 32, BlockLayout::grid({56, 56}, {.block = {8, 8}}))},
      {"wan", vision(1, 12, 128, BlockLayout::grid({21, 30, 50}, {.blocks = {3, 5, 10}}))},
      {"dit-s-4096", vision(1, 6, 64, BlockLayout::grid({256, 256}, {.block = {16, 16}}))},
      {"lm-2k", lm(2048)},
      {"lm-32k", lm(32768)},
      {"one-head",
       [&] {
         Problem p = lm(2048);
         p.heads = 1;
         return p;
       }()},
  };
}

// One thread is timed by its own clock, which other programs on the machine do not advance.
double now(int threads) {
  timespec time;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The best of several calls.
double seconds(const std::function<void()>& call, int threads, double budget) {
  double best = 1e30, spent = 0;
  for (int i = 0; i < 3 || spent < budget; ++i) {
    const double start = now(threads);
    call();
    const double took = now(threads) - start;
    best = std::min(best, took);
    spent += took;
  }
  return best;
}

// Aligned as a workspace must be; frameworks align tensors alike.
class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(std::size_t size) : size_(size), data_(new(kAlignment) char[size]) {}
  char* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  static constexpr std::align_val_t kAlignment{mhla::kWorkspaceAlignment};
  struct Free {
    void operator()(char* p) const { ::operator delete[](p, kAlignment); }
  };
  std::size_t size_ = 0;
  std::unique_ptr<char[], Free> data_;
};

// Inputs are slices of one fused [B, N, H, dk + dk + dv ...] projection, as a model has them.
class Tensors {
 public:
  explicit Tensors(const Problem& p) : p_(p) {
    const std::int64_t n = p.layout.tokens();
    stride_ = p.heads * (2 * p.dk + p.dv);
    fused_ = memory(p.batch * n * stride_);
    o_ = memory(p.batch * n * p.heads * p.dv);
    d_o_ = memory(p.batch * n * p.heads * p.dv);
    d_fused_ = memory(p.batch * n * stride_);
    const std::int64_t m = p.layout.mixing_size();
    mixing_.assign(static_cast<std::size_t>(m * m), 1.0f / static_cast<float>(m));
    d_mixing_.resize(mixing_.size());
  }
  TensorView slice(Bytes& from, std::int64_t offset, std::int64_t width) const {
    TensorView view = TensorView::contiguous(
        from.data() + static_cast<std::size_t>(offset) * mhla::size_of(p_.dtype), p_.dtype,
        {p_.batch, p_.layout.tokens(), p_.heads, width});
    view.strides = {p_.layout.tokens() * stride_, stride_, width, 1};
    return view;
  }
  TensorView output(Bytes& from) const {
    return TensorView::contiguous(from.data(), p_.dtype,
                                  {p_.batch, p_.layout.tokens(), p_.heads, p_.dv});
  }
  mhla::ForwardInputs inputs() {
    return {.q = slice(fused_, 0, p_.dk),
            .k = slice(fused_, p_.heads * p_.dk, p_.dk),
            .v = slice(fused_, 2 * p_.heads * p_.dk, p_.dv),
            .mixing = matrix(mixing_)};
  }
  mhla::ForwardOutputs outputs() { return {.o = output(o_)}; }
  mhla::BackwardInputs backward_inputs() {
    const mhla::ForwardInputs in = inputs();
    return {
        .q = in.q, .k = in.k, .v = in.v, .mixing = in.mixing, .o = output(o_), .d_o = output(d_o_)};
  }
  mhla::BackwardOutputs gradients() {
    return {.d_q = slice(d_fused_, 0, p_.dk),
            .d_k = slice(d_fused_, p_.heads * p_.dk, p_.dk),
            .d_v = slice(d_fused_, 2 * p_.heads * p_.dk, p_.dv),
            .d_mixing = matrix(d_mixing_)};
  }

 private:
  Bytes memory(std::int64_t count) const {
    Bytes bytes(static_cast<std::size_t>(count) * mhla::size_of(p_.dtype));
    mhla::with_dtype(p_.dtype, [&]<typename T>(T) {
      T* x = reinterpret_cast<T*>(bytes.data());
      std::uint32_t state = 1;
      for (std::int64_t i = 0; i < count; ++i) {
        state = state * 1664525u + 1013904223u;
        x[i] = mhla::from_float<T>(static_cast<float>(state >> 8) * 0x1p-23f - 1.0f);
      }
    });
    return bytes;
  }
  static TensorView matrix(std::vector<float>& data) {
    std::int64_t m = 0;
    while (m * m < static_cast<std::int64_t>(data.size())) ++m;
    return TensorView::of(data.data(), {m, m});
  }

  const Problem& p_;
  std::int64_t stride_;
  Bytes fused_, o_, d_o_, d_fused_;
  std::vector<float> mixing_, d_mixing_;
};

struct Times {
  double forward, backward;
};

Times time_plan(const mhla::Plan& plan, int threads, bool backwards, double budget) {
  Tensors tensors(plan.problem());
  Bytes memory(std::max(plan.forward_workspace(), plan.backward_workspace()));
  const mhla::Workspace workspace{memory.data(), memory.size()};
  Times times{};
  times.forward = seconds(
      [&] { mhla::forward(plan, tensors.inputs(), tensors.outputs(), workspace); }, threads,
      budget);
  if (!backwards) return times;
  times.backward = seconds(
      [&] { mhla::backward(plan, tensors.backward_inputs(), tensors.gradients(), workspace); },
      threads, budget);
  return times;
}

// One thread, 24 heads: microseconds a head, linear and dense, forward and backward.
void compare_forms(DType dtype, mhla::Mask mask) {
  std::printf(
      "%s %s\n   N  block    d |  forward linear   dense  predicted        | backward "
      "linear   dense | plan\n",
      mhla::name(dtype), mhla::name(mask));
  for (const std::int64_t d : {32, 64, 128}) {
    for (const std::int64_t block : {1, 4, 8, 16, 64}) {
      for (const std::int64_t n : {16, 64, 128, 256, 512}) {
        if (block > n || n / block > 256) continue;
        const Problem p{.heads = 24,
                        .dk = d,
                        .dv = d,
                        .layout = BlockLayout::sequence(n, {.block = {block}}),
                        .mask = mask,
                        .dtype = dtype};
        Times times[2];
        double predicted[2];
        for (const int dense : {0, 1}) {
          const mhla::Plan plan = mhla::plan(
              p, {.implementation = dense ? "cpu.dense" : "cpu.linear", .threads = 1});
          times[dense] = time_plan(plan, 1, true, 0.01);
          for (const auto& candidate : plan.candidates()) {
            if (candidate.chosen) predicted[dense] = candidate.predicted_seconds;
          }
        }
        const double us = 1e6 / 24;
        std::printf("%4ld %6ld %4ld | %14.2f %7.2f %8.2f %7.2f | %14.2f %7.2f | %s%s\n",
                    static_cast<long>(n), static_cast<long>(block), static_cast<long>(d),
                    times[0].forward * us, times[1].forward * us, predicted[0] * us,
                    predicted[1] * us, times[0].backward * us, times[1].backward * us,
                    mhla::plan(p, {.threads = 1}).implementation().c_str(),
                    (predicted[0] < predicted[1]) == (times[0].forward < times[1].forward)
                        ? ""
                        : "  (the slower one)");
        std::fflush(stdout);
      }
    }
  }
}

void time_shape(const Shape& shape, DType dtype, int threads, double peak, bool backwards) {
  Problem p = shape.problem;
  p.dtype = dtype;
  const mhla::Plan plan = mhla::plan(p, {.implementation = "cpu.linear", .threads = threads});
  const auto [forward, backward] = time_plan(plan, threads, backwards, 0.3);
  const auto print = [&](const char* what, double flops, double s) {
    std::printf("  %s %9.3f ms %6.1f GFLOP/s %3.0f %%", what, s * 1e3, flops / s * 1e-9,
                100 * flops / s / peak / threads);
  };
  std::printf("%-11s %-4s %dt", shape.name, mhla::name(dtype), threads);
  print("forward", plan.cost().forward_flops, forward);
  if (backwards) print("backward", plan.cost().backward_flops, backward);
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  bool backwards = true;
  std::erase_if(words, [&](const std::string& word) {
    if (word == "-f") backwards = false;
    if (word[0] == '@') mhla::cpu::choose_target_for_test(word.substr(1));
    return word == "-f" || word[0] == '@';
  });
  const double peak = mhla::cpu::kernels().peak(0.2);
  std::printf("%s, inner loop %.1f GFLOP/s per core in f32\n", mhla::cpu::kernels().target,
              peak * 1e-9);
  if (words == std::vector<std::string>{"forms"}) {
    compare_forms(DType::f32, mhla::Mask::none);
    compare_forms(DType::f32, mhla::Mask::causal);
    compare_forms(DType::bf16, mhla::Mask::none);
    return 0;
  }
  for (const Shape& shape : shapes()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const int threads : {1, 2}) {
        const std::string line = std::string(shape.name) + " " + mhla::name(dtype) + " " +
                                 std::to_string(threads) + "t";
        bool wanted = true;
        for (const auto& word : words) wanted = wanted && line.find(word) != std::string::npos;
        if (wanted) time_shape(shape, dtype, threads, peak, backwards);
      }
    }
  }
}
