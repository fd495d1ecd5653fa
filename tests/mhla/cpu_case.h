// One call of the CPU kernels beside the f64 reference on the same values.
#pragma once

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "mhla/core/half.h"
#include "mhla/mhla.h"
#include "support/tensors.h"

namespace mhla::test {

// Tensors of any storage type; q, k and v are slices of one fused projection with gaps between.
class CpuCase {
 public:
  CpuCase(const Problem& problem, std::uint64_t seed)
      : problem_(problem), truth_(in_f64(problem), seed) {
    round(truth_.q), round(truth_.k), round(truth_.v), round(truth_.d_o);
    round(truth_.q_den), round(truth_.k_den);
    for (double& x : truth_.mixing) x = static_cast<float>(x);
  }

  Call& truth() { return truth_; }
  void compute_truth() { truth_.backward(); }

  // All outputs of the kernels, by name; forward and backward start from poisoned memory.
  std::map<std::string, std::vector<double>> run(const PlanOptions& options) {
    const Plan p = plan(problem_, options);
    const std::int64_t nq = problem_.layout.tokens(), nk = problem_.keys().tokens();
    const Storage q = store(truth_.q, nq, problem_.dk), k = store(truth_.k, nk, problem_.dk);
    const Storage v = store(truth_.v, nk, problem_.dv), d_o = store(truth_.d_o, nq, problem_.dv);
    Storage q_den, k_den;
    if (problem_.separate_denominator) {
      q_den = store(truth_.q_den, nq, problem_.dk);
      k_den = store(truth_.k_den, nk, problem_.dk);
    }
    std::vector<float> mixing(truth_.mixing.begin(), truth_.mixing.end()),
        d_mixing(mixing.size(), NAN);
    const Storage o = poisoned(nq, problem_.dv);
    const ForwardInputs in{.q = q.view,
                           .k = k.view,
                           .v = v.view,
                           .mixing = mixing_view(mixing),
                           .q_den = q_den.view,
                           .k_den = k_den.view};
    with_workspace(p.forward_workspace(),
                   [&](const Workspace& w) { forward(p, in, {.o = o.view}, w); });
    std::map<std::string, std::vector<double>> got{{"o", load(o)}};

    const Storage d_q = poisoned(nq, problem_.dk), d_k = poisoned(nk, problem_.dk);
    const Storage d_v = poisoned(nk, problem_.dv);
    BackwardOutputs out{
        .d_q = d_q.view, .d_k = d_k.view, .d_v = d_v.view, .d_mixing = mixing_view(d_mixing)};
    Storage d_q_den, d_k_den;
    if (problem_.separate_denominator) {
      d_q_den = poisoned(nq, problem_.dk), d_k_den = poisoned(nk, problem_.dk);
      out.d_q_den = d_q_den.view, out.d_k_den = d_k_den.view;
    }
    with_workspace(p.backward_workspace(), [&](const Workspace& w) {
      backward(p, {in.q, in.k, in.v, in.mixing, o.view, d_o.view, in.q_den, in.k_den}, out, w);
    });
    got["d_q"] = load(d_q), got["d_k"] = load(d_k), got["d_v"] = load(d_v);
    got["d_mixing"] = {d_mixing.begin(), d_mixing.end()};
    if (problem_.separate_denominator)
      got["d_q_den"] = load(d_q_den), got["d_k_den"] = load(d_k_den);
    return got;
  }

  const std::vector<double>& expected(const std::string& name) const {
    if (name == "o") return truth_.o;
    if (name == "d_q") return truth_.d_q;
    if (name == "d_k") return truth_.d_k;
    if (name == "d_v") return truth_.d_v;
    if (name == "d_q_den") return truth_.d_q_den;
    if (name == "d_k_den") return truth_.d_k_den;
    return truth_.d_mixing;
  }

 private:
  struct Storage {
    std::vector<unsigned char> bytes = {};
    TensorView view = {};
  };
  static constexpr std::int64_t kGap = 3;  // elements between heads, as other tensors would fill

  static Problem in_f64(Problem p) {
    p.dtype = DType::f64;
    return p;
  }
  void round(std::vector<double>& values) const {
    with_dtype(problem_.dtype, [&]<typename T>(T) {
      for (double& x : values) x = to_float(from_float<T>(x));
    });
  }
  Storage poisoned(std::int64_t tokens, std::int64_t width) const {
    Storage s;
    const std::int64_t head = width + kGap, row = problem_.heads * head + kGap;
    const std::size_t element = size_of(problem_.dtype);
    s.bytes.assign(static_cast<std::size_t>(problem_.batch * tokens * row + 1) * element, 0xff);
    s.view = TensorView::contiguous(s.bytes.data(), problem_.dtype,
                                    {problem_.batch, tokens, problem_.heads, width});
    s.view.strides = {tokens * row, row, head, 1};
    return s;
  }
  template <typename F>
  void each(const Storage& s, F&& f) const {
    std::size_t i = 0;
    for (std::int64_t b = 0; b < s.view.shape[0]; ++b)
      for (std::int64_t n = 0; n < s.view.shape[1]; ++n)
        for (std::int64_t h = 0; h < s.view.shape[2]; ++h)
          for (std::int64_t d = 0; d < s.view.shape[3]; ++d) {
            f(i++, b * s.view.strides[0] + n * s.view.strides[1] + h * s.view.strides[2] + d);
          }
  }
  Storage store(const std::vector<double>& values, std::int64_t tokens, std::int64_t width) const {
    Storage s = poisoned(tokens, width);
    with_dtype(problem_.dtype, [&]<typename T>(T) {
      each(s, [&](std::size_t i, std::int64_t at) {
        static_cast<T*>(s.view.data)[at] = from_float<T>(values[i]);
      });
    });
    return s;
  }
  std::vector<double> load(const Storage& s) const {
    std::vector<double> values(static_cast<std::size_t>(s.view.size()));
    with_dtype(problem_.dtype, [&]<typename T>(T) {
      each(s, [&](std::size_t i, std::int64_t at) {
        values[i] = to_float(static_cast<const T*>(s.view.data)[at]);
      });
    });
    return values;
  }
  TensorView mixing_view(std::vector<float>& data) const {
    TensorView view = truth_.mixing_view(truth_.mixing);
    view.data = data.data(), view.dtype = DType::f32;
    return view;
  }
  template <typename F>
  static void with_workspace(std::size_t bytes, F&& f) {
    std::vector<unsigned char> memory(bytes + 2 * kWorkspaceAlignment, 0xff);
    void* data = memory.data();
    std::size_t space = memory.size();
    std::align(kWorkspaceAlignment, bytes, data, space);
    f(Workspace{data, bytes});
    for (auto* at = static_cast<unsigned char*>(data) + bytes; at < &memory.back(); ++at) {
      if (*at != 0xff) fail(ErrorCode::internal, "test", "wrote behind the workspace");
    }
  }

  Problem problem_;
  Call truth_;
};

}  // namespace mhla::test
