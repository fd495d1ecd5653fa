// The usual call of mhla.attention, by the shortest way from Python: after a kernel of a
// millisecond all code is out of the caches, and torch.ops with its schemas takes longer than the
// rest of a call.
#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "nn/operators.h"

namespace {

constexpr Py_ssize_t kTensors = 4, kArguments = 5;

// attention(q, k, v, mixing, options) -> Tensor, or None where it is not for this function: what
// are no plain tensors (subclasses, fake ones) and what a mode wants to see. A 16-bit mixing matrix
// is widened.
PyObject* attention(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  const bool plain = count == kArguments && PyUnicode_Check(arguments[kTensors]) &&
                     std::all_of(arguments, arguments + kTensors, THPVariable_CheckExact) &&
                     !at::impl::torch_function_mode_enabled();
  if (!plain) Py_RETURN_NONE;
  Py_ssize_t length = 0;
  const char* options = PyUnicode_AsUTF8AndSize(arguments[kTensors], &length);
  if (options == nullptr) return nullptr;
  const auto tensor = [arguments](int i) -> const at::Tensor& {
    return THPVariable_Unpack(arguments[i]);
  };
  at::Tensor o;
  {
    const pybind11::gil_scoped_release others_may_run;
    const at::Tensor& mixing = tensor(3);
    const bool narrow = mixing.scalar_type() == at::kBFloat16 || mixing.scalar_type() == at::kHalf;
    o = mhla::nn::ops::forward(tensor(0), tensor(1), tensor(2),
                               narrow ? mixing.to(at::kFloat) : mixing, std::nullopt, std::nullopt,
                               {}, {}, {options, static_cast<std::size_t>(length)});
  }
  return THPVariable_Wrap(std::move(o));
  END_HANDLE_TH_ERRORS
}

PyMethodDef functions[] = {
    {"attention", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(attention)),
     METH_FASTCALL, "attention(q, k, v, mixing, options) -> Tensor | None"},
    {},
};
PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "mhla_call", nullptr, 0, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_mhla_call() { return PyModule_Create(&module); }
