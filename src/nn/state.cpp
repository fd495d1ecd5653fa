#include "nn/state.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>

#include "mhla/error.h"
#include "nn/mixing.h"
#include "nn/stream.h"
#include "nn/tensor_view.h"

namespace mhla::nn {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Holder = c10::intrusive_ptr<StreamState>;

// In the state's type, as autocast would have it, with contiguous rows.
at::Tensor rows(const at::Tensor& given, at::ScalarType type) {
  if (given.dim() != 4) fail("state", "q, k, v: expected [B, T, H, D], got ", given.dim(), " axes");
  const at::Tensor tensor = given.to(type);
  return tensor.stride(-1) == 1 || tensor.size(-1) <= 1 ? tensor : tensor.contiguous();
}

at::Tensor prefill(const Holder& state, const at::Tensor& q, const at::Tensor& k,
                   const at::Tensor& v, const OptionalTensor& q_den, const OptionalTensor& k_den) {
  return state->read(q, k, v, q_den, k_den);
}

at::Tensor step(const Holder& state, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                const OptionalTensor& q_den, const OptionalTensor& k_den) {
  if (q.dim() != 4 || q.size(1) != 1) {
    std::ostringstream shape;
    shape << q.sizes();
    fail("state.step", "q: expected one token [B, 1, H, D], got ", shape.str(),
         " (prefill reads several)");
  }
  return state->read(q, k, v, q_den, k_den);
}

// A graph would end here in silence, so it does not begin. kName: the operator.
template <const char* kName>
at::Tensor without_gradients(const Holder& state, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const OptionalTensor& q_den,
                             const OptionalTensor& k_den) {
  for (const at::Tensor* tensor : {&q, &k, &v}) {
    if (at::GradMode::is_enabled() && tensor->requires_grad()) {
      fail(ErrorCode::unsupported, "state",
           "prefill and step have no gradients: call them under torch.no_grad(), or attention "
           "with a causal mask");
    }
  }
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(kName, "").typed<decltype(prefill)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(state, q, k, v, q_den, k_den);
}
constexpr char kPrefill[] = "mhla::prefill", kStep[] = "mhla::step";

at::Tensor shape_of_read(const Holder&, const at::Tensor& q, const at::Tensor&, const at::Tensor& v,
                         const OptionalTensor&, const OptionalTensor&) {
  return at::empty_symint({q.sym_size(0), q.sym_size(1), q.sym_size(2), v.sym_size(3)},
                          q.options());
}

}  // namespace

StreamState::StreamState(const std::string& problem, const at::Tensor& mixing)
    : state_(parse_problem(problem), matrix_of(mixing)) {}

at::Tensor StreamState::read(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
                             const OptionalTensor& q_den, const OptionalTensor& k_den) {
  const at::NoGradGuard no_gradient;
  const c10::OptionalDeviceGuard guard(q_in.device());
  const at::ScalarType type = scalar_type_of(state_.problem().dtype);
  const at::Tensor q = rows(q_in, type), k = rows(k_in, type), v = rows(v_in, type);
  const at::Tensor qd = q_den ? rows(*q_den, type) : at::Tensor();
  const at::Tensor kd = k_den ? rows(*k_den, type) : at::Tensor();
  at::Tensor o = at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
  const State::Inputs inputs{.q = view_of(q),
                             .k = view_of(k),
                             .v = view_of(v),
                             .q_den = view_of(qd),
                             .k_den = view_of(kd)};
  const Stream stream = current_stream(q.device());
  if (q.size(1) == 1) {
    state_.step(inputs, view_of(o), stream);
  } else {
    state_.prefill(inputs, view_of(o), stream);
  }
  return o;
}

}  // namespace mhla::nn

TORCH_LIBRARY_FRAGMENT(mhla, m) {
  using mhla::State;
  using mhla::nn::Holder;
  using mhla::nn::StreamState;
  m.class_<StreamState>("State")
      .def(torch::init<const std::string&, const at::Tensor&>())
      .def("tokens", [](const Holder& s) { return s->get().tokens(); })
      .def("block_size", [](const Holder& s) { return s->get().block_size(); })
      .def("bytes", [](const Holder& s) { return static_cast<std::int64_t>(s->get().bytes()); })
      .def("fork",
           [](const Holder& s) { return c10::make_intrusive<StreamState>(s->get().fork()); })
      .def("rewind", [](const Holder& s, std::int64_t tokens) { s->get().rewind(tokens); })
      .def("save", [](const Holder& s, const std::string& path) { s->get().save(path); })
      .def_pickle(
          [](const Holder& s) {
            const std::string bytes = s->get().serialize();
            at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
            std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
            return tensor;
          },
          [](const at::Tensor& bytes) {
            return c10::make_intrusive<StreamState>(State::deserialize(
                bytes.cpu().contiguous().data_ptr(), static_cast<std::size_t>(bytes.numel())));
          });
  m.def("load_state(str path) -> __torch__.torch.classes.mhla.State", [](const std::string& path) {
    return c10::make_intrusive<StreamState>(State::load(path));
  });
  m.def(
      "prefill(__torch__.torch.classes.mhla.State state, Tensor q, Tensor k, Tensor v, "
      "Tensor? q_den=None, Tensor? k_den=None) -> Tensor");
  m.def(
      "step(__torch__.torch.classes.mhla.State state, Tensor q, Tensor k, Tensor v, "
      "Tensor? q_den=None, Tensor? k_den=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(mhla, Autograd, m) {
  m.impl("prefill", TORCH_FN(mhla::nn::without_gradients<mhla::nn::kPrefill>));
  m.impl("step", TORCH_FN(mhla::nn::without_gradients<mhla::nn::kStep>));
}
TORCH_LIBRARY_IMPL(mhla, CPU, m) {
  m.impl("prefill", TORCH_FN(mhla::nn::prefill));
  m.impl("step", TORCH_FN(mhla::nn::step));
}
TORCH_LIBRARY_IMPL(mhla, CUDA, m) {
  m.impl("prefill", TORCH_FN(mhla::nn::prefill));
  m.impl("step", TORCH_FN(mhla::nn::step));
}
TORCH_LIBRARY_IMPL(mhla, Meta, m) {
  m.impl("prefill", TORCH_FN(mhla::nn::shape_of_read));
  m.impl("step", TORCH_FN(mhla::nn::shape_of_read));
}
