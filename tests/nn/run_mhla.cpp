// For the Python tests: builds the C++ layer, gives it parameters and runs it.
#include <ATen/ops/cat.h>
#include <torch/library.h>

#include <stdexcept>

#include "nn/modules/mhla.h"

namespace {

using mhla::nn::Preset;
using mhla::nn::Task;

Task task_of(std::string_view name) {
  if (name == "classification") return Task::classification;
  if (name == "dit") return Task::dit;
  if (name == "video") return Task::video;
  if (name == "language") return Task::language;
  throw std::invalid_argument("unknown task");
}

// A layer with given parameters. widths: dim, heads, dim_k, tokens.
mhla::nn::MHLA make(c10::string_view preset, c10::string_view task, at::IntArrayRef widths,
                    at::IntArrayRef grid, at::IntArrayRef block,
                    const std::vector<std::string>& names, const std::vector<at::Tensor>& values,
                    at::ScalarType type) {
  auto config = mhla::nn::MHLAConfig::preset(preset == "paper" ? Preset::paper : Preset::authors,
                                             task_of(task));
  config.dim = widths[0];
  config.heads = widths[1];
  config.dim_k = widths[2];
  config.tokens = widths[3];
  config.layout = {grid.vec(), {.block = block.vec()}};
  mhla::nn::MHLA layer(config);
  layer->eval();
  layer->to(type);
  const at::NoGradGuard no_gradient;
  auto parameters = layer->named_parameters();
  if (parameters.size() != names.size()) throw std::invalid_argument("other parameters");
  for (std::size_t i = 0; i < names.size(); ++i) parameters[names[i]].copy_(values[i]);
  return layer;
}

at::Tensor run_mhla(c10::string_view preset, c10::string_view task, at::IntArrayRef widths,
                    at::IntArrayRef grid, at::IntArrayRef block,
                    const std::vector<std::string>& names, const std::vector<at::Tensor>& values,
                    const at::Tensor& x) {
  auto layer = make(preset, task, widths, grid, block, names, values, x.scalar_type());
  const auto copy = std::dynamic_pointer_cast<mhla::nn::MHLAImpl>(layer->clone());
  const at::NoGradGuard no_gradient;
  layer->mixing.zero_();  // a clone has parameters of its own
  return copy->forward(x);
}

// The pieces of a text, one after another.
at::Tensor step_mhla(c10::string_view preset, at::IntArrayRef widths, at::IntArrayRef block,
                     const std::vector<std::string>& names, const std::vector<at::Tensor>& values,
                     at::TensorList pieces) {
  auto layer = make(preset, "language", widths, {}, block, names, values, pieces[0].scalar_type());
  const auto state = layer->init_state(pieces[0].size(0));
  std::vector<at::Tensor> outputs;
  for (const at::Tensor& piece : pieces) outputs.push_back(layer->step(piece, *state));
  return at::cat(outputs, 1);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(mhla_test, m) {
  m.def(
      "run_mhla(str preset, str task, int[] widths, int[] grid, int[] block, str[] names, "
      "Tensor[] values, Tensor x) -> Tensor",
      TORCH_FN(run_mhla));
  m.def(
      "step_mhla(str preset, int[] widths, int[] block, str[] names, Tensor[] values, "
      "Tensor[] pieces) -> Tensor",
      TORCH_FN(step_mhla));
}
