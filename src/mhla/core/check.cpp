// Comparing what the caller handed over with what the problem says.
#include "mhla/core/check.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "mhla/core/arithmetic.h"
#include "mhla/core/implementation.h"

namespace mhla {
namespace {

std::string shape_text(std::initializer_list<std::int64_t> shape) {
  return TensorView::contiguous(nullptr, DType::f32, shape).shape_string();
}

void check_dtype_and_device(const char* where, const char* label, const TensorView& view,
                            const Problem& problem) {
  if (view.dtype != problem.dtype) {
    fail(where, label, ": expected ", name(problem.dtype), ", got ", name(view.dtype));
  }
  if (view.device != problem.device) {
    fail(where, label, ": expected on ", to_string(problem.device), ", got ",
         to_string(view.device));
  }
}

// Two index tuples of an output must never name the same element.
bool overlaps_itself(const TensorView& view) {
  std::vector<std::pair<std::int64_t, std::int64_t>> axes;  // stride, extent
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.shape[axis] > 1) axes.emplace_back(view.strides[axis], view.shape[axis]);
  }
  std::sort(axes.begin(), axes.end());
  std::int64_t reach = 0;  // largest offset of the axes so far
  for (const auto& [stride, extent] : axes) {
    if (stride <= reach) return true;
    reach += stride * (extent - 1);
  }
  return false;
}

void check_mixing(const char* where, const char* label, const TensorView& view,
                  const Problem& problem, Access access, bool may_be_narrow = false) {
  const std::int64_t rows = problem.layout.mixing_size(), cols = problem.keys().mixing_size();
  const int rank = problem.mixing_per_head ? 3 : 2;
  const std::string expected = problem.mixing_per_head ? shape_text({problem.heads, rows, cols})
                                                       : shape_text({rows, cols});
  const auto mismatch = [&](const char* why) {
    fail(where, label, ": expected shape ", expected, why, ", got ", view.shape_string());
  };
  if (view.rank != rank) mismatch("");
  if (problem.mixing_per_head && view.shape[0] != problem.heads) mismatch("");
  // A matrix learned for a long context serves a shorter one; a grid has no such prefix.
  const auto fits = [](const BlockLayout& layout, std::int64_t have, std::int64_t need) {
    return layout.axes() == 1 ? have >= need : have == need;
  };
  if (!fits(problem.layout, view.shape[rank - 2], rows) ||
      !fits(problem.keys(), view.shape[rank - 1], cols)) {
    const bool rows_may = problem.layout.axes() == 1, cols_may = problem.keys().axes() == 1;
    mismatch(rows_may && cols_may ? " or larger"
             : rows_may           ? " or more rows"
             : cols_may           ? " or more columns"
                                  : "");
  }
  const bool f64_allowed = problem.dtype == DType::f64;
  const bool narrow = may_be_narrow && view.dtype == problem.dtype;
  if (view.dtype != DType::f32 && !(f64_allowed && view.dtype == DType::f64) && !narrow) {
    fail(where, label, ": expected f32", f64_allowed ? " or f64" : "", ", got ", name(view.dtype));
  }
  if (view.device != problem.device) {
    fail(where, label, ": expected on ", to_string(problem.device), ", got ",
         to_string(view.device));
  }
  check_addressable(where, label, view, access);
}

void check_workspace(const char* where, const Workspace& workspace, std::size_t needed) {
  if (workspace.bytes < needed) {
    fail(where, "workspace: expected at least ", needed, " bytes, got ", workspace.bytes);
  }
  if (needed > 0 && workspace.data == nullptr) fail(where, "workspace: data is null");
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % kWorkspaceAlignment != 0) {
    fail(where, "workspace: must be aligned to ", kWorkspaceAlignment, " bytes");
  }
}

struct Named {
  const char* label;
  const TensorView* view;
};

// Writing a result over an input, or two results over each other, is never meant.
void check_distinct(const char* where, const std::vector<Named>& outputs,
                    const std::vector<Named>& inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const TensorView& out = *outputs[i].view;
    if (!out.defined() || out.size() == 0) continue;
    const auto refuse_same = [&](const Named& other) {
      if (other.view->defined() && other.view->data == out.data) {
        fail(where, outputs[i].label, ": starts at the same address as ", other.label);
      }
    };
    for (const Named& input : inputs) refuse_same(input);
    for (std::size_t j = 0; j < i; ++j) refuse_same(outputs[j]);
  }
}

void check_denominator_inputs(const char* where, const TensorView& q_den, const TensorView& k_den,
                              const Problem& problem) {
  if (problem.separate_denominator) {
    check_tensor(where, "q_den", q_den, problem, problem.layout.tokens(), problem.dk, Access::read);
    check_tensor(where, "k_den", k_den, problem, problem.keys().tokens(), problem.dk, Access::read);
  } else if (q_den.defined() || k_den.defined()) {
    fail(where, q_den.defined() ? "q_den" : "k_den",
         ": given, but the problem has separate_denominator = false");
  }
}

void check_local(const char* where, const LocalTerm& local, const Plan& plan) {
  const Problem& problem = plan.problem();
  if (!local.weight.defined()) {
    if (local.bias.defined()) fail(where, "local.bias: given without local.weight");
    return;
  }
  const auto& kernel = local.kernel;
  if (!plan.adds_local(kernel)) {
    fail(ErrorCode::unsupported, where, "local: ", plan.implementation(),
         " does not add a convolution of ", kernel[0], " x ", kernel[1], " x ", kernel[2], " to ",
         problem.to_string(), " (ask Plan::adds_local)");
  }
  const std::int64_t channels = problem.heads * problem.dv;
  const std::int64_t taps = kernel[0] * kernel[1] * kernel[2];
  const auto check_row_major = [&](const char* label, const TensorView& view,
                                   std::initializer_list<std::int64_t> shape) {
    const TensorView wanted = TensorView::contiguous(view.data, problem.dtype, shape,
                                                     problem.device);
    if (view.rank != wanted.rank || view.shape != wanted.shape || view.strides != wanted.strides) {
      fail(where, label, ": expected row-major ", shape_text(shape), ", got ", view.shape_string());
    }
    check_dtype_and_device(where, label, view, problem);
    check_addressable(where, label, view, Access::read);
  };
  check_row_major("local.weight", local.weight, {channels, taps});
  if (local.bias.defined()) check_row_major("local.bias", local.bias, {channels});
}

}  // namespace

void check_addressable(const char* where, const char* label, const TensorView& view,
                       Access access) {
  std::int64_t last = 0;
  bool empty = false;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.shape[axis] < 0) fail(where, label, ": negative size in ", view.shape_string());
    empty = empty || view.shape[axis] == 0;
    if (view.shape[axis] > 1 && view.strides[axis] < 0) {
      fail(where, label, ": negative stride ", view.strides[axis], " of axis ", axis);
    }
  }
  if (empty) return;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.shape[axis] == 1) continue;
    last = checked_add(where, last, checked_mul(where, view.shape[axis] - 1, view.strides[axis]));
  }
  checked_mul(where, checked_add(where, last, 1), static_cast<std::int64_t>(size_of(view.dtype)));
  if (view.data == nullptr) fail(where, label, ": data is null");
  if (reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype) != 0) {
    fail(where, label, ": data is not aligned to its elements of ", size_of(view.dtype), " bytes");
  }
  const int inner = view.rank - 1;
  if (view.shape[inner] > 1 && view.strides[inner] != 1) {
    fail(where, label, ": the last dimension must be contiguous, its stride is ",
         view.strides[inner]);
  }
  if (access == Access::write && overlaps_itself(view)) {
    fail(where, label, ": its elements overlap (strides of an expanded or windowed tensor)");
  }
}

void check_tensor(const char* where, const char* label, const TensorView& view,
                  const Problem& problem, std::int64_t tokens, std::int64_t width, Access access) {
  const std::array<std::int64_t, 4> shape{problem.batch, tokens, problem.heads, width};
  if (view.rank != 4 || view.shape != shape) {
    fail(where, label, ": expected shape ", shape_text({shape[0], shape[1], shape[2], shape[3]}),
         ", got ", view.defined() ? view.shape_string() : "nothing");
  }
  check_dtype_and_device(where, label, view, problem);
  check_addressable(where, label, view, access);
}

void check_forward(const Plan& plan, const ForwardInputs& in, const ForwardOutputs& out,
                   const Workspace& workspace) {
  const char* where = "forward";
  const Problem& p = plan.problem();
  const std::int64_t nq = p.layout.tokens(), nk = p.keys().tokens();
  check_tensor(where, "q", in.q, p, nq, p.dk, Access::read);
  check_tensor(where, "k", in.k, p, nk, p.dk, Access::read);
  check_tensor(where, "v", in.v, p, nk, p.dv, Access::read);
  check_tensor(where, "o", out.o, p, nq, p.dv, Access::write);
  check_denominator_inputs(where, in.q_den, in.k_den, p);
  // Whether of these tensors, too, only the implementation knows, and it is asked once.
  check_mixing(where, "mixing", in.mixing, p, Access::read,
               plan.data().implementation->reads_narrow_mixing != nullptr);
  check_local(where, in.local, plan);
  check_distinct(where, {{"o", &out.o}},
                 {{"q", &in.q},
                  {"k", &in.k},
                  {"v", &in.v},
                  {"mixing", &in.mixing},
                  {"q_den", &in.q_den},
                  {"k_den", &in.k_den},
                  {"local.weight", &in.local.weight},
                  {"local.bias", &in.local.bias}});
  check_workspace(where, workspace, plan.forward_workspace());
}

void check_backward(const Plan& plan, const BackwardInputs& in, const BackwardOutputs& out,
                    const Workspace& workspace) {
  const char* where = "backward";
  const Problem& p = plan.problem();
  const std::int64_t nq = p.layout.tokens(), nk = p.keys().tokens();
  check_tensor(where, "q", in.q, p, nq, p.dk, Access::read);
  check_tensor(where, "k", in.k, p, nk, p.dk, Access::read);
  check_tensor(where, "v", in.v, p, nk, p.dv, Access::read);
  check_tensor(where, "o", in.o, p, nq, p.dv, Access::read);
  check_tensor(where, "d_o", in.d_o, p, nq, p.dv, Access::read);
  check_denominator_inputs(where, in.q_den, in.k_den, p);
  check_mixing(where, "mixing", in.mixing, p, Access::read);
  const auto output = [&](const char* label, const TensorView& view, std::int64_t tokens,
                          std::int64_t width) {
    if (view.defined()) check_tensor(where, label, view, p, tokens, width, Access::write);
  };
  output("d_q", out.d_q, nq, p.dk);
  output("d_k", out.d_k, nk, p.dk);
  output("d_v", out.d_v, nk, p.dv);
  if ((out.d_q_den.defined() || out.d_k_den.defined()) && !p.separate_denominator) {
    fail(where, out.d_q_den.defined() ? "d_q_den" : "d_k_den",
         ": asked for, but the problem has separate_denominator = false");
  }
  output("d_q_den", out.d_q_den, nq, p.dk);
  output("d_k_den", out.d_k_den, nk, p.dk);
  if (out.d_mixing.defined()) {
    if (out.d_mixing.shape != in.mixing.shape || out.d_mixing.rank != in.mixing.rank) {
      fail(where, "d_mixing: expected shape ", in.mixing.shape_string(), ", got ",
           out.d_mixing.shape_string());
    }
    if (out.d_mixing.dtype != in.mixing.dtype) {
      fail(where, "d_mixing: expected ", name(in.mixing.dtype), " as mixing, got ",
           name(out.d_mixing.dtype));
    }
    check_mixing(where, "d_mixing", out.d_mixing, p, Access::write);
  }
  check_distinct(where,
                 {{"d_q", &out.d_q},
                  {"d_k", &out.d_k},
                  {"d_v", &out.d_v},
                  {"d_mixing", &out.d_mixing},
                  {"d_q_den", &out.d_q_den},
                  {"d_k_den", &out.d_k_den}},
                 {{"q", &in.q},
                  {"k", &in.k},
                  {"v", &in.v},
                  {"mixing", &in.mixing},
                  {"o", &in.o},
                  {"d_o", &in.d_o},
                  {"q_den", &in.q_den},
                  {"k_den", &in.k_den}});
  check_workspace(where, workspace, plan.backward_workspace());
}

}  // namespace mhla
