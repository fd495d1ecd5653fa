// The usual call of mhla.attention, by the shortest way from Python: after a kernel of a
// millisecond all code is out of the caches, and torch.ops with its schemas takes longer than the
// rest of a call.
#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "nn/operators.h"

namespace {

// The arguments of mhla.attention: tensors, then words, which the text of the options is made of,
// then what only unusual calls have.
constexpr std::array kNames = {"q",        "k",          "v",           "mixing",     "layout",
                               "mask",     "normalizer", "feature_map", "scale",      "eps",
                               "layout_k", "q_den",      "k_den",       "cu_seqlens", "local"};
constexpr std::size_t kTensors = 4, kWords = 6;
std::array<PyObject*, kNames.size()> names;  // as Python writes them in a call: interned

// Null where a call says nothing.
using Arguments = std::array<PyObject*, kNames.size()>;
using Words = std::span<PyObject* const, kWords>;

// False where Python has to say what is wrong.
bool read(PyObject* positional, PyObject* keywords, Arguments& arguments) {
  const Py_ssize_t count = PyTuple_GET_SIZE(positional);
  if (count > static_cast<Py_ssize_t>(kTensors)) return false;
  for (Py_ssize_t i = 0; i < count; ++i) arguments[i] = PyTuple_GET_ITEM(positional, i);
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(keywords, &position, &key, &value);) {
    const std::size_t i = std::ranges::find(names, key) - names.begin();
    if (i == names.size() || arguments[i] != nullptr) return false;
    arguments[i] = value;
  }
  return true;
}

// Plain tensors, a layout and nothing unusual.
bool is_usual(const Arguments& arguments) {
  const auto tensors = std::span(arguments).first<kTensors>();
  const auto others = std::span(arguments).subspan<kTensors + kWords>();
  return std::ranges::all_of(tensors,
                             [](auto* each) { return each && THPVariable_CheckExact(each); }) &&
         std::ranges::all_of(others, [](auto* each) { return !each || each == Py_None; }) &&
         arguments[kTensors] && !at::impl::torch_function_mode_enabled();
}

// The text that a call's words mean. It is found again by the very objects, which are held so that
// no others get their addresses.
struct Known {
  std::array<THPObjectPtr, kWords> words;
  THPObjectPtr options;
};

// Layouts do not change, nor do words and numbers; other objects might.
bool stay_the_same(Words words) {
  const auto is_text = [](auto* word) { return !word || PyUnicode_CheckExact(word); };
  const auto is_number = [](auto* word) {
    return !word || word == Py_None || PyFloat_CheckExact(word) || PyLong_CheckExact(word);
  };
  return std::ranges::all_of(words.subspan<1, 3>(), is_text) &&
         std::ranges::all_of(words.subspan<4>(), is_number);
}

// layout._options(mask=..., ...), and null with Python's error where it fails.
THPObjectPtr make_options(Words words) {
  THPObjectPtr method(PyObject_GetAttrString(words[0], "_options")), said(PyDict_New());
  if (!method || !said) return {};
  for (std::size_t i = 1; i < kWords; ++i) {
    if (words[i] && PyDict_SetItem(said.get(), names[kTensors + i], words[i]) != 0) return {};
  }
  return THPObjectPtr(PyObject_VectorcallDict(method.get(), nullptr, 0, said.get()));
}

// A new reference, or null where Python has to say what is wrong, or with an error that ends it.
THPObjectPtr options_of(Words words) {
  constexpr int kBits = 8;                                // more places than a model has layouts
  static auto& all = *new std::array<Known, 1 << kBits>;  // NOTE: Python may end before us
  std::uint64_t sum = 0;
  for (PyObject* word : words) sum += reinterpret_cast<std::uintptr_t>(word);
  // NOTE: addresses are multiples of 16 or 64; the golden ratio spreads them.
  Known& known = all[sum * 0x9e3779b97f4a7c15 >> (64 - kBits)];
  const auto is_same = [](const THPObjectPtr& a, PyObject* b) { return a.get() == b; };
  if (std::ranges::equal(known.words, words, is_same)) {
    return THPObjectPtr(Py_NewRef(known.options.get()));
  }
  if (!stay_the_same(words)) return {};
  Known now{.words = {}, .options = make_options(words)};
  if (!now.options || !PyUnicode_Check(now.options.get())) {
    if (PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
    return {};
  }
  for (std::size_t i = 0; i < kWords; ++i) now.words[i] = Py_XNewRef(words[i]);
  THPObjectPtr options(Py_NewRef(now.options.get()));
  std::swap(known, now);  // NOTE: the end of what was here may call Python, and so this function
  return options;
}

// attention(arguments, keywords) -> Tensor, or None where the call is not for this function: what
// are no plain tensors (subclasses, fake ones), what a mode wants to see, unusual and wrong
// arguments. A 16-bit mixing matrix is widened.
PyObject* attention(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Arguments arguments{};
  const bool usual = count == 2 && PyTuple_Check(given[0]) && PyDict_Check(given[1]) &&
                     read(given[0], given[1], arguments) && is_usual(arguments);
  if (!usual) Py_RETURN_NONE;
  THPObjectPtr text = options_of(std::span(arguments).subspan<kTensors, kWords>());
  if (!text) {
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NONE;
  }
  Py_ssize_t length = 0;
  const char* options = PyUnicode_AsUTF8AndSize(text.get(), &length);
  if (options == nullptr) return nullptr;
  const auto tensor = [&arguments](int i) -> const at::Tensor& {
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
     METH_FASTCALL, "attention(arguments: tuple, keywords: dict) -> Tensor | None"},
    {},
};
PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "mhla_call", nullptr, 0, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_mhla_call() {
  for (std::size_t i = 0; i < names.size(); ++i) {
    names[i] = PyUnicode_InternFromString(kNames[i]);
    if (names[i] == nullptr) return nullptr;
  }
  return PyModule_Create(&module);
}
