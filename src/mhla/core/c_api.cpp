// The C interface: every call is turned into the C++ one, and whatever it throws into a status.
#include "mhla/c_api.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "mhla/mhla.h"

struct mhla_problem {
  mhla::Problem problem;
  std::string text;
};
struct mhla_plan {
  mhla::Plan plan;
  std::string implementation;
  std::string explanation;
};
struct mhla_mixing {
  mhla::MixingMatrix matrix;
};
struct mhla_state {
  mhla::State state;
};

namespace {

using mhla::ErrorCode;
using mhla::fail;
using mhla::TensorView;

static_assert(MHLA_WORKSPACE_ALIGNMENT == mhla::kWorkspaceAlignment);

// A plain array: recording an error must not itself run out of memory. Longer messages are cut.
thread_local char last_error[1024] = "";

mhla_status record(mhla_status status, const char* message) noexcept {
  std::snprintf(last_error, sizeof last_error, "%s", message);
  return status;
}

mhla_status status_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument: return MHLA_INVALID_ARGUMENT;
    case ErrorCode::unsupported: return MHLA_UNSUPPORTED;
    case ErrorCode::corrupt_data: return MHLA_CORRUPT_DATA;
    case ErrorCode::io: return MHLA_IO;
    case ErrorCode::device: return MHLA_DEVICE;
    case ErrorCode::internal: return MHLA_INTERNAL;
  }
  return MHLA_INTERNAL;
}

// Runs the body of a call; nothing thrown in it passes.
template <typename Body>
mhla_status guarded(Body&& body) noexcept {
  try {
    body();
    return record(MHLA_OK, "");
  } catch (const mhla::Error& error) {
    return record(status_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return record(MHLA_INTERNAL, "[mhla.c_api] out of memory");
  } catch (const std::exception& error) {
    return record(MHLA_INTERNAL, error.what());
  } catch (...) {
    return record(MHLA_INTERNAL, "[mhla.c_api] an exception of unknown type");
  }
}

// For calls that return a value: `otherwise` when the body throws.
template <typename Value, typename Body>
Value value_or(Value otherwise, Body&& body) noexcept {
  guarded([&] { otherwise = body(); });
  return otherwise;
}

template <typename T>
T& given(const char* call, const char* argument, T* pointer) {
  if (pointer == nullptr) fail("c_api", call, ": ", argument, " is NULL");
  return *pointer;
}

// Hands a new object to the caller. The result is NULL when anything fails, so it may be destroyed.
template <typename Handle, typename Make>
mhla_status create(const char* call, const char* argument, Handle** result, Make&& make) noexcept {
  if (result != nullptr) *result = nullptr;
  return guarded([&] {
    given(call, argument, result);
    *result = std::make_unique<Handle>(make()).release();
  });
}

// Shapes, strides and addresses are checked by the call itself; here only what cannot be converted.
TensorView view_of(const char* call, const char* label, const mhla_tensor& tensor) {
  TensorView view;
  if (tensor.rank == 0) return view;
  if (tensor.rank < 0 || tensor.rank > TensorView::kMaxRank) {
    fail("c_api", call, ": ", label, ".rank: expected 0 to ", TensorView::kMaxRank, ", got ",
         tensor.rank);
  }
  switch (tensor.dtype) {
    case MHLA_F32: view.dtype = mhla::DType::f32; break;
    case MHLA_F64: view.dtype = mhla::DType::f64; break;
    case MHLA_BF16: view.dtype = mhla::DType::bf16; break;
    case MHLA_F16: view.dtype = mhla::DType::f16; break;
    default: fail("c_api", call, ": ", label, ".dtype: ", tensor.dtype, " is no mhla_dtype");
  }
  switch (tensor.device_kind) {
    case MHLA_CPU: view.device = mhla::Device::cpu(); break;
    case MHLA_CUDA: view.device = mhla::Device::cuda(tensor.device_index); break;
    default:
      fail("c_api", call, ": ", label, ".device_kind: ", tensor.device_kind,
           " is no mhla_device_kind");
  }
  if (tensor.device_index < 0) {
    fail("c_api", call, ": ", label, ".device_index: expected 0 or more, got ",
         tensor.device_index);
  }
  view.data = tensor.data;
  view.rank = tensor.rank;
  for (int axis = 0; axis < view.rank; ++axis) {
    view.shape[axis] = tensor.shape[axis];
    view.strides[axis] = tensor.strides[axis];
  }
  return view;
}

mhla_tensor tensor_of(const TensorView& view) {
  mhla_tensor tensor{};
  tensor.data = view.data;
  tensor.dtype = MHLA_F32;  // all the weights of a MixingMatrix are
  tensor.device_kind = MHLA_CPU;
  tensor.rank = view.rank;
  for (int axis = 0; axis < view.rank; ++axis) {
    tensor.shape[axis] = view.shape[axis];
    tensor.strides[axis] = view.strides[axis];
  }
  return tensor;
}

mhla::MixingMatrix make_mixing(const mhla::Problem& problem, const std::string& how) {
  using mhla::MixingMatrix;
  const auto shared = [&] {
    if (how == "uniform") return MixingMatrix::uniform(problem.layout, problem.keys());
    if (!(problem.keys() == problem.layout)) {
      fail("c_api", "mhla_mixing_create: '", how,
           "' needs one layout for queries and keys; use \"uniform\" for cross-attention");
    }
    if (how == "locality") return MixingMatrix::locality(problem.layout);
    if (how == "causal_uniform") return MixingMatrix::causal_uniform(problem.layout);
    for (const mhla::Transform transform :
         {mhla::Transform::linear, mhla::Transform::cos, mhla::Transform::exp,
          mhla::Transform::gaussian, mhla::Transform::local}) {
      if (how == name(transform)) return MixingMatrix::authors(problem.layout, transform);
    }
    fail("c_api", "mhla_mixing_create: how: expected locality, uniform, causal_uniform, linear, ",
         "cos, exp, gaussian or local, got '", how, "'");
  }();
  return problem.mixing_per_head ? shared.repeated_per_head(problem.heads) : shared;
}

mhla::State::Inputs state_inputs(const char* call, const mhla_forward_inputs* inputs) {
  const mhla_forward_inputs& in = given(call, "inputs", inputs);
  // Another matrix would be silently ignored: the state has its own.
  if (in.mixing.rank != 0) {
    fail("c_api", call, ": mixing: a state keeps the weights it was created with, leave it empty");
  }
  return {.q = view_of(call, "q", in.q),
          .k = view_of(call, "k", in.k),
          .v = view_of(call, "v", in.v),
          .q_den = view_of(call, "q_den", in.q_den),
          .k_den = view_of(call, "k_den", in.k_den)};
}

}  // namespace

extern "C" {

const char* mhla_version(void) { return mhla::version(); }

const char* mhla_last_error(void) { return last_error; }

mhla_status mhla_problem_create(const char* text, mhla_problem** problem) {
  return create("mhla_problem_create", "problem", problem, [&] {
    given("mhla_problem_create", "text", text);
    mhla::Problem parsed = mhla::parse_problem(text);
    std::string printed = parsed.to_string();
    return mhla_problem{std::move(parsed), std::move(printed)};
  });
}

const char* mhla_problem_text(const mhla_problem* problem) {
  return value_or("", [&] { return given("mhla_problem_text", "problem", problem).text.c_str(); });
}

void mhla_problem_destroy(mhla_problem* problem) { delete problem; }

mhla_status mhla_plan_create(const mhla_problem* problem, const char* implementation, int threads,
                             mhla_plan** plan) {
  return create("mhla_plan_create", "plan", plan, [&] {
    const mhla::Problem& described = given("mhla_plan_create", "problem", problem).problem;
    if (threads < 0) fail("c_api", "mhla_plan_create: threads: expected 0 or more, got ", threads);
    mhla::Plan made = mhla::plan(
        described,
        {.implementation = implementation == nullptr ? "" : implementation, .threads = threads});
    std::string chosen = made.implementation();
    std::string explanation = made.explain();
    return mhla_plan{std::move(made), std::move(chosen), std::move(explanation)};
  });
}

const char* mhla_plan_implementation(const mhla_plan* plan) {
  return value_or(
      "", [&] { return given("mhla_plan_implementation", "plan", plan).implementation.c_str(); });
}

const char* mhla_plan_explain(const mhla_plan* plan) {
  return value_or("", [&] { return given("mhla_plan_explain", "plan", plan).explanation.c_str(); });
}

size_t mhla_plan_forward_workspace(const mhla_plan* plan) {
  return value_or(size_t{0}, [&] {
    return given("mhla_plan_forward_workspace", "plan", plan).plan.forward_workspace();
  });
}

size_t mhla_plan_backward_workspace(const mhla_plan* plan) {
  return value_or(size_t{0}, [&] {
    return given("mhla_plan_backward_workspace", "plan", plan).plan.backward_workspace();
  });
}

void mhla_plan_destroy(mhla_plan* plan) { delete plan; }

mhla_status mhla_forward(const mhla_plan* plan, const mhla_forward_inputs* inputs,
                         const mhla_tensor* o, void* workspace, size_t workspace_bytes,
                         void* stream) {
  return guarded([&] {
    const char* call = "mhla_forward";
    const mhla::Plan& made = given(call, "plan", plan).plan;
    const mhla_forward_inputs& in = given(call, "inputs", inputs);
    mhla::forward(made,
                  {.q = view_of(call, "q", in.q),
                   .k = view_of(call, "k", in.k),
                   .v = view_of(call, "v", in.v),
                   .mixing = view_of(call, "mixing", in.mixing),
                   .q_den = view_of(call, "q_den", in.q_den),
                   .k_den = view_of(call, "k_den", in.k_den)},
                  {.o = view_of(call, "o", given(call, "o", o))}, {workspace, workspace_bytes},
                  stream);
  });
}

mhla_status mhla_backward(const mhla_plan* plan, const mhla_backward_inputs* inputs,
                          const mhla_gradients* gradients, void* workspace, size_t workspace_bytes,
                          void* stream) {
  return guarded([&] {
    const char* call = "mhla_backward";
    const mhla::Plan& made = given(call, "plan", plan).plan;
    const mhla_backward_inputs& in = given(call, "inputs", inputs);
    const mhla_gradients& out = given(call, "gradients", gradients);
    mhla::backward(made,
                   {.q = view_of(call, "q", in.q),
                    .k = view_of(call, "k", in.k),
                    .v = view_of(call, "v", in.v),
                    .mixing = view_of(call, "mixing", in.mixing),
                    .o = view_of(call, "o", in.o),
                    .d_o = view_of(call, "d_o", in.d_o),
                    .q_den = view_of(call, "q_den", in.q_den),
                    .k_den = view_of(call, "k_den", in.k_den)},
                   {.d_q = view_of(call, "d_q", out.d_q),
                    .d_k = view_of(call, "d_k", out.d_k),
                    .d_v = view_of(call, "d_v", out.d_v),
                    .d_mixing = view_of(call, "d_mixing", out.d_mixing),
                    .d_q_den = view_of(call, "d_q_den", out.d_q_den),
                    .d_k_den = view_of(call, "d_k_den", out.d_k_den)},
                   {workspace, workspace_bytes}, stream);
  });
}

mhla_status mhla_mixing_create(const mhla_problem* problem, const char* how, mhla_mixing** mixing) {
  return create("mhla_mixing_create", "mixing", mixing, [&] {
    const mhla::Problem& described = given("mhla_mixing_create", "problem", problem).problem;
    given("mhla_mixing_create", "how", how);
    return mhla_mixing{make_mixing(described, how)};
  });
}

mhla_status mhla_mixing_from(const float* weights, int64_t heads, int64_t rows, int64_t cols,
                             mhla_mixing** mixing) {
  return create("mhla_mixing_from", "mixing", mixing, [&] {
    given("mhla_mixing_from", "weights", weights);
    return mhla_mixing{mhla::MixingMatrix::from(weights, heads, rows, cols)};
  });
}

mhla_tensor mhla_mixing_view(const mhla_mixing* mixing) {
  return value_or(mhla_tensor{}, [&] {
    return tensor_of(given("mhla_mixing_view", "mixing", mixing).matrix.view());
  });
}

void mhla_mixing_destroy(mhla_mixing* mixing) { delete mixing; }

mhla_status mhla_state_create(const mhla_problem* problem, const mhla_mixing* mixing,
                              mhla_state** state) {
  return create("mhla_state_create", "state", state, [&] {
    const mhla::Problem& described = given("mhla_state_create", "problem", problem).problem;
    return mhla_state{mhla::State(described, given("mhla_state_create", "mixing", mixing).matrix)};
  });
}

mhla_status mhla_state_prefill(mhla_state* state, const mhla_forward_inputs* inputs,
                               const mhla_tensor* o, void* stream) {
  return guarded([&] {
    const char* call = "mhla_state_prefill";
    mhla::State& target = given(call, "state", state).state;
    target.prefill(state_inputs(call, inputs), view_of(call, "o", given(call, "o", o)), stream);
  });
}

mhla_status mhla_state_step(mhla_state* state, const mhla_forward_inputs* inputs,
                            const mhla_tensor* o, void* stream) {
  return guarded([&] {
    const char* call = "mhla_state_step";
    mhla::State& target = given(call, "state", state).state;
    target.step(state_inputs(call, inputs), view_of(call, "o", given(call, "o", o)), stream);
  });
}

mhla_status mhla_state_fork(const mhla_state* state, mhla_state** branch) {
  return create("mhla_state_fork", "branch", branch,
                [&] { return mhla_state{given("mhla_state_fork", "state", state).state.fork()}; });
}

mhla_status mhla_state_rewind(mhla_state* state, int64_t tokens) {
  return guarded([&] { given("mhla_state_rewind", "state", state).state.rewind(tokens); });
}

int64_t mhla_state_tokens(const mhla_state* state) {
  return value_or(int64_t{0},
                  [&] { return given("mhla_state_tokens", "state", state).state.tokens(); });
}

size_t mhla_state_bytes(const mhla_state* state) {
  return value_or(size_t{0},
                  [&] { return given("mhla_state_bytes", "state", state).state.bytes(); });
}

mhla_status mhla_state_save(const mhla_state* state, const char* path) {
  return guarded([&] {
    const mhla::State& stream = given("mhla_state_save", "state", state).state;
    given("mhla_state_save", "path", path);
    stream.save(path);
  });
}

mhla_status mhla_state_load(const char* path, mhla_state** state) {
  return create("mhla_state_load", "state", state, [&] {
    given("mhla_state_load", "path", path);
    return mhla_state{mhla::State::load(path)};
  });
}

void mhla_state_destroy(mhla_state* state) { delete state; }

}  // extern "C"
