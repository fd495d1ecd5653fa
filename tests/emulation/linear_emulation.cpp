// cuda.linear on the emulated multiprocessor against the f64 reference, forward and backward.
//
//   linear_emulation [PROBLEM...]   a problem as `mhla explain` prints it, ` pad=N` for strided
//   rows
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "mhla/core/half.h"
#include "mhla/core/implementation.h"
#include "mhla/cuda/implementations.h"
#include "mhla/mhla.h"

namespace mhla {
std::vector<const Implementation*> cuda_implementations() { return {}; }
std::vector<const Implementation*> cpu_implementations() { return {}; }
}  // namespace mhla

namespace {

using namespace mhla;

std::mt19937_64 random_bits(7);
int failures = 0;

// [B, N, H, D] in its own type with rows `pad` elements apart, and the same values in f64.
class Tensor {
 public:
  Tensor(const Problem& p, std::int64_t tokens, std::int64_t width, std::int64_t pad, bool random)
      : shape_{p.batch, tokens, p.heads, width}, pad_(pad), dtype_(p.dtype) {
    const std::int64_t rows = p.batch * tokens * p.heads;
    exact_.resize(rows * width);
    raw_.assign(rows * (width + pad) * size_of(dtype_), 0xff);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; random && i < exact_.size(); ++i) set(i, normal(random_bits));
  }
  TensorView device() {
    TensorView view = TensorView::contiguous(
        raw_.data(), dtype_, {shape_[0], shape_[1], shape_[2], shape_[3]}, Device::cuda(0));
    const std::int64_t row = shape_[3] + pad_;
    view.strides = {shape_[1] * shape_[2] * row, shape_[2] * row, row, 1};
    return view;
  }
  TensorView exact() {
    return TensorView::of(exact_.data(), {shape_[0], shape_[1], shape_[2], shape_[3]});
  }
  // |device - exact| / |exact|; infinite when an element was not written.
  double error() const {
    double difference = 0, size = 1e-30;
    for (std::size_t i = 0; i < exact_.size(); ++i) {
      difference += std::pow(get(i) - exact_[i], 2);
      size += exact_[i] * exact_[i];
    }
    return std::sqrt(difference / size);
  }

 private:
  std::size_t place(std::size_t i) const {
    return i / shape_[3] * (shape_[3] + pad_) + i % shape_[3];
  }
  void set(std::size_t i, float x) {
    with_dtype(dtype_, [&](auto type) {
      using T = decltype(type);
      const T value = from_float<T>(x);
      reinterpret_cast<T*>(raw_.data())[place(i)] = value;
      exact_[i] = to_float(value);
    });
  }
  double get(std::size_t i) const {
    return with_dtype(dtype_, [&](auto type) {
      using T = decltype(type);
      return static_cast<double>(to_float(reinterpret_cast<const T*>(raw_.data())[place(i)]));
    });
  }

  std::array<std::int64_t, 4> shape_;
  std::int64_t pad_;
  DType dtype_;
  std::vector<double> exact_;
  std::vector<unsigned char> raw_;
};

class Memory {  // poisoned, of the alignment a workspace has
 public:
  explicit Memory(std::size_t bytes) : data_(bytes + kWorkspaceAlignment, 0xff) {}
  Workspace get() {
    const auto address = reinterpret_cast<std::uintptr_t>(data_.data());
    const std::size_t skip = (kWorkspaceAlignment - address % kWorkspaceAlignment) %
                             kWorkspaceAlignment;
    return {data_.data() + skip, data_.size() - kWorkspaceAlignment};
  }

 private:
  std::vector<unsigned char> data_;
};

void report(const char* name, double error, double limit) {
  const bool good = error < limit;  // NaN is not
  if (!good) ++failures;
  std::printf(" %s %.1e%s", name, error, good ? "" : " TOO LARGE");
}

void check(std::string text) {
  std::int64_t pad = 0;
  if (const auto at = text.find(" pad="); at != std::string::npos) {
    pad = std::stoll(text.substr(at + 5));
    text.resize(at);
  }
  const Problem problem = parse_problem(text + " device=cuda:0");
  Problem exact = parse_problem(text);
  exact.dtype = DType::f64;
  const Plan reference = plan(exact, {.implementation = "reference"});
  const Implementation& linear = cuda::linear_implementation();
  PlanData data{.problem = problem};
  data.prepared = linear.prepare(problem);

  const std::int64_t nq = problem.layout.tokens(), nk = problem.keys().tokens();
  const auto tensor = [&](std::int64_t tokens, std::int64_t width, bool random) {
    return Tensor(problem, tokens, width, pad, random);
  };
  Tensor q = tensor(nq, problem.dk, true), k = tensor(nk, problem.dk, true);
  Tensor v = tensor(nk, problem.dv, true), d_o = tensor(nq, problem.dv, true);
  Tensor q_den = tensor(nq, problem.dk, true), k_den = tensor(nk, problem.dk, true);
  Tensor o = tensor(nq, problem.dv, false), d_v = tensor(nk, problem.dv, false);
  Tensor d_q = tensor(nq, problem.dk, false), d_k = tensor(nk, problem.dk, false);
  Tensor d_q_den = tensor(nq, problem.dk, false), d_k_den = tensor(nk, problem.dk, false);

  // 1-D layouts use a leading part of the matrix: give them more than they need.
  const std::int64_t more = problem.layout.axes() == 1 ? 1 : 0;
  const std::int64_t rows = problem.layout.mixing_size() + more;
  const std::int64_t cols = problem.keys().mixing_size() + more;
  const std::int64_t matrices = problem.mixing_per_head ? problem.heads : 1;
  std::vector<float> mixing(matrices * rows * cols), ours(mixing.size(), NAN), truth(ours);
  std::uniform_real_distribution<float> uniform(0.1f, 1.f);
  for (float& weight : mixing) weight = uniform(random_bits);
  const auto view = [&](std::vector<float>& weights, Device device) {
    return problem.mixing_per_head ? TensorView::of(weights.data(), {matrices, rows, cols}, device)
                                   : TensorView::of(weights.data(), {rows, cols}, device);
  };

  const bool separate = problem.separate_denominator;
  const auto forward_inputs = [&](bool on_device) {
    const auto of = [&](Tensor& t) { return on_device ? t.device() : t.exact(); };
    ForwardInputs in{.q = of(q),
                     .k = of(k),
                     .v = of(v),
                     .mixing = view(mixing, on_device ? Device::cuda(0) : Device::cpu())};
    if (separate) in.q_den = of(q_den), in.k_den = of(k_den);
    return in;
  };
  const auto backward_inputs = [&](bool on_device) {
    const ForwardInputs in = forward_inputs(on_device);
    const auto of = [&](Tensor& t) { return on_device ? t.device() : t.exact(); };
    return BackwardInputs{.q = in.q,
                          .k = in.k,
                          .v = in.v,
                          .mixing = in.mixing,
                          .o = of(o),
                          .d_o = of(d_o),
                          .q_den = in.q_den,
                          .k_den = in.k_den};
  };
  const auto gradients = [&](bool on_device) {
    const auto of = [&](Tensor& t) { return on_device ? t.device() : t.exact(); };
    BackwardOutputs out{
        .d_q = of(d_q),
        .d_k = of(d_k),
        .d_v = of(d_v),
        .d_mixing = view(on_device ? ours : truth, on_device ? Device::cuda(0) : Device::cpu())};
    if (separate) out.d_q_den = of(d_q_den), out.d_k_den = of(d_k_den);
    return out;
  };

  forward(reference, forward_inputs(false), {.o = o.exact()});
  backward(reference, backward_inputs(false), gradients(false));
  Memory forward_memory(linear.forward_workspace(problem, {}));
  linear.forward(data, forward_inputs(true), {.o = o.device()}, forward_memory.get(), nullptr);
  Memory backward_memory(linear.backward_workspace(problem, {}));
  linear.backward(data, backward_inputs(true), gradients(true), backward_memory.get(), nullptr);

  // A handful of roundings of the type; gradients of the weights are differences and lose more.
  const double limit = problem.dtype == DType::f32   ? 2e-5
                       : problem.dtype == DType::f16 ? 3e-3
                                                     : 1.5e-2;
  std::printf("%s%s:", text.c_str(), pad ? " padded" : "");
  report("o", o.error(), limit);
  report("d_q", d_q.error(), 2 * limit);
  report("d_k", d_k.error(), 2 * limit);
  report("d_v", d_v.error(), 2 * limit);
  double difference = 0, size = 1e-30;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    difference += std::pow(ours[i] - truth[i], 2);
    size += static_cast<double>(truth[i]) * truth[i];
  }
  report("d_mixing", std::sqrt(difference / size), 5 * limit);
  if (separate) {
    report("d_q_den", d_q_den.error(), 2 * limit);
    report("d_k_den", d_k_den.error(), 2 * limit);
  }
  std::printf("\n");
  std::fflush(stdout);
}

std::vector<std::string> default_problems() {
  std::vector<std::string> problems;
  const auto add = [&](const std::string& text) { problems.push_back(text); };
  for (const std::string type : {" dtype=bf16", " dtype=f16", " dtype=f32"}) {
    for (const std::string normalizer : {"exact", "shared_position", "none"}) {
      for (const std::string mask : {"none", "causal", "block_causal"}) {
        for (const std::string separate : {"false", "true"}) {
          if (normalizer == "none" && separate == "true") continue;
          add("sequence=70 block=24 heads=2 dk=32 dv=32 scale=0.3 normalizer=" + normalizer +
              " mask=" + mask + " separate_denominator=" + separate + type);
        }
      }
    }
    for (const int d : {8, 33, 64, 72, 96, 128, 200}) {
      const std::string width = " heads=1 dk=" + std::to_string(d) + type;
      add("sequence=130 block=80 dv=" + std::to_string(d) + width);
      add("sequence=70 block=40 dv=40 mask=causal normalizer=none" + width);
    }
    add("sequence=100 block=70 heads=1 dk=32 dv=70 mask=causal normalizer=none" + type);
    add("grid=5x6x7 block=2x3x4 heads=2 dk=64 dv=64 normalizer=shared_position feature_map=elu1" +
        type);
    add("grid=5x6x7 blocks=2x2x2 heads=2 dk=64 dv=64 feature_map=relu" + type + " pad=8");
    add("grid=5x6 blocks=2x2 heads=2 dk=64 dv=64 feature_map=elu1" + type + " pad=3");
    add("sequence=100+32+7 block=16 heads=2 dk=32 dv=64 mixing_per_head=true mask=causal" + type);
    add("sequence=100+32+7 block=16 batch=2 heads=2 dk=32 dv=70" + type);
    add("sequence=600 block=16 heads=1 dk=32 dv=32" + type);
    add("sequence=1500 block=10 heads=1 dk=32 dv=32" + type);
    add("sequence=2000 block=10 heads=1 dk=32 dv=32" + type);
    add("sequence=150 block=64 heads=1 dk=128 dv=256 scale=0.1 mask=causal normalizer=none" + type);
  }
  return problems;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> given(argv + 1, argv + argc);
  for (const std::string& text : given.empty() ? default_problems() : given) check(text);
  std::printf(failures ? "%d results are wrong\n" : "all results are right\n", failures);
  return failures != 0;
}
