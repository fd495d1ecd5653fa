// Networks for Python: `torch.classes.mhla.Model`, whose parameters are the very tensors that the
// C++ modules hold, so that optimisers, `.grad` and `load_state_dict` act on them directly.
#include <torch/custom_class.h>
#include <torch/library.h>

#include "models/layers/recompute.h"
#include "models/lm/lm.h"
#include "models/wan/wan.h"
#include "models/weights.h"

namespace mhla::models {
namespace {

class Handle : public torch::CustomClassHolder {
 public:
  Handle(const std::string& name, const std::string& options, const std::string& device)
      : model_(create_model(name, options, {.device = c10::Device(device)})) {}
  Model& get() { return *model_; }
  at::Tensor forward(const std::vector<at::Tensor>& inputs) {
    const RecomputeBlocks blocks(recompute);
    return model_->forward(inputs);
  }

  bool recompute = false;

 private:
  std::shared_ptr<Model> model_;
};
using Holder = c10::intrusive_ptr<Handle>;

// What a language model remembers between steps.
class Stream : public torch::CustomClassHolder {
 public:
  LmState state;
};
using StreamHolder = c10::intrusive_ptr<Stream>;

at::Tensor step(const Holder& self, const at::Tensor& ids, const StreamHolder& stream) {
  auto* lm = dynamic_cast<Lm*>(&self->get());
  if (!lm) fail("models", self->get().name, ": only language models go step by step");
  const at::NoGradGuard no_gradient;
  return lm->step(ids, stream->state);
}

using Named = c10::Dict<std::string, at::Tensor>;

Named dict_of(const torch::OrderedDict<std::string, at::Tensor>& items) {
  Named dict;
  for (const auto& item : items) dict.insert(item.key(), item.value());
  return dict;
}

// [part, multiply-adds, elements kept for the backward pass]
std::vector<std::tuple<std::string, double, double>> cost(const Holder& self) {
  std::vector<std::tuple<std::string, double, double>> parts;
  const CostSheet sheet = self->get().cost();
  for (const Cost& each : sheet.parts()) {
    parts.emplace_back(each.part, each.macs, each.kept);
  }
  return parts;
}

StateDict state_of(const Named& tensors) {
  StateDict state;
  for (const auto& item : tensors) state.emplace(item.key(), item.value());
  return state;
}

std::tuple<Named, std::vector<std::string>> adopt(const Holder& self, const Named& tensors) {
  std::vector<std::string> notes;
  Named result;
  for (const auto& [name, tensor] : self->get().adopt(state_of(tensors), notes))
    result.insert(name, tensor);
  return {result, notes};
}

// tensors, what has no place there, notes, config.json
std::tuple<Named, std::vector<std::string>, std::vector<std::string>, std::string> export_as(
    const Holder& self, const std::string& package, bool partial) {
  const Exported exported = self->get().export_as(package, partial);
  Named tensors;
  for (const auto& [name, tensor] : exported.tensors) tensors.insert(name, tensor);
  return {tensors, exported.left_out, exported.notes, exported.config};
}

std::string model_options(const std::string& name, const Named& tensors) {
  return name.find("wan") == std::string::npos ? "" : wan_options(state_of(tensors));
}

std::tuple<at::Tensor, std::string> fit(const Holder& self, const std::string& name,
                                        const at::Tensor& stored) {
  std::string how;
  at::Tensor fitted = self->get().fit(name, stored, how);
  return {fitted.defined() ? fitted : at::empty({0}), how};
}

}  // namespace
}  // namespace mhla::models

TORCH_LIBRARY_FRAGMENT(mhla, m) {
  using mhla::models::Handle;
  using mhla::models::Holder;
  m.class_<mhla::models::Stream>("ModelStream").def(torch::init<>());
  m.class_<Handle>("Model")
      .def(torch::init<const std::string&, const std::string&, const std::string&>())
      .def("forward", [](const Holder& self,
                         const std::vector<at::Tensor>& inputs) { return self->forward(inputs); })
      .def("set_recompute", [](const Holder& self, bool on) { self->recompute = on; })
      .def("parameters",
           [](const Holder& self) { return mhla::models::dict_of(self->get().named_parameters()); })
      .def("buffers",
           [](const Holder& self) { return mhla::models::dict_of(self->get().named_buffers()); })
      .def("train", [](const Holder& self, bool on) { self->get().train(on); })
      .def("constrain", [](const Holder& self) { self->get().constrain(); })
      .def("input_names", [](const Holder& self) { return self->get().input_names(); })
      .def("example_inputs",
           [](const Holder& self, std::int64_t batch) { return self->get().example_inputs(batch); })
      .def("family", [](const Holder& self) { return self->get().family; })
      .def("cost", &mhla::models::cost)
      .def("step", &mhla::models::step)
      .def("adopt", &mhla::models::adopt)
      .def("load_file",
           [](const Holder& self, const std::string& path, bool strict) {
             return mhla::models::load_weights(self->get(), path, strict);
           })
      .def("load_tensors",
           [](const Holder& self, const c10::Dict<std::string, at::Tensor>& tensors, bool strict) {
             return mhla::models::load_weights(self->get(), mhla::models::state_of(tensors),
                                               strict);
           })
      .def("save",
           [](const Holder& self, const std::string& path, const std::string& package, bool partial,
              const std::string& dtype, std::int64_t max_file_bytes) {
             return mhla::models::save_weights(
                 self->get(), path,
                 {.package = package,
                  .partial = partial,
                  .dtype = dtype,
                  .max_file_bytes = static_cast<std::uint64_t>(max_file_bytes)});
           })
      .def("packages", [](const Holder& self) { return self->get().packages(); })
      .def("export_as", &mhla::models::export_as)
      .def("fit", &mhla::models::fit);
  m.def("model_names() -> str[]", &mhla::models::model_names);
  m.def("model_options(str name, Dict(str, Tensor) tensors) -> str", &mhla::models::model_options);
}
