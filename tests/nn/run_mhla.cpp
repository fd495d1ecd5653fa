// For the Python tests: builds the C++ layer, gives it parameters and runs it.
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

at::Tensor run_mhla(c10::string_view preset, c10::string_view task, at::IntArrayRef widths,
                    at::IntArrayRef grid, at::IntArrayRef block,
                    const std::vector<std::string>& names, const std::vector<at::Tensor>& values,
                    const at::Tensor& x) {
  auto config = mhla::nn::MHLAConfig::preset(preset == "paper" ? Preset::paper : Preset::authors,
                                             task_of(task));
  config.dim = widths[0];
  config.heads = widths[1];
  config.dim_k = widths[2];
  config.tokens = widths[3];
  config.layout = {grid.vec(), {.block = block.vec()}};
  mhla::nn::MHLA layer(config);
  layer->eval();
  layer->to(x.scalar_type());
  const at::NoGradGuard no_gradient;
  auto parameters = layer->named_parameters();
  if (parameters.size() != names.size()) throw std::invalid_argument("other parameters");
  for (std::size_t i = 0; i < names.size(); ++i) parameters[names[i]].copy_(values[i]);
  return layer->forward(x);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(mhla_test, m) {
  m.def(
      "run_mhla(str preset, str task, int[] widths, int[] grid, int[] block, str[] names, "
      "Tensor[] values, Tensor x) -> Tensor",
      TORCH_FN(run_mhla));
}
