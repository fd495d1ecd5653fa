// For pytest: reads and writes checkpoints with the C++ code.
#include <torch/library.h>

#include "io/torch/weights.h"

namespace {

using at::Tensor;
using mhla::io::Checkpoint;

std::string text(c10::string_view value) { return {value.data(), value.size()}; }

std::tuple<std::vector<std::string>, std::vector<Tensor>> read_checkpoint(c10::string_view path) {
  std::vector<std::string> names;
  std::vector<Tensor> values;
  for (const auto& [name, value] : mhla::io::state_dict(Checkpoint::open(text(path)))) {
    names.push_back(name);
    values.push_back(value);
  }
  return {names, values};
}

// key, value, key, value
std::vector<std::string> checkpoint_metadata(c10::string_view path) {
  std::vector<std::string> words;
  const Checkpoint file = Checkpoint::open(text(path));
  for (const auto& [key, value] : file.metadata()) {
    words.push_back(key);
    words.push_back(value);
  }
  return words;
}

std::vector<std::string> checkpoint_sections(c10::string_view path) {
  return Checkpoint::open(text(path)).sections();
}

std::vector<std::string> write_checkpoint(c10::string_view path, std::vector<std::string> names,
                                          at::TensorList values, std::vector<std::string> metadata,
                                          std::int64_t max_file_bytes) {
  mhla::io::StateDict tensors;
  for (std::size_t i = 0; i < names.size(); ++i) tensors.emplace(names[i], values[i]);
  mhla::io::SaveOptions options;
  options.max_file_bytes = static_cast<std::uint64_t>(max_file_bytes);
  for (std::size_t i = 0; i + 1 < metadata.size(); i += 2) {
    options.metadata.emplace(metadata[i], metadata[i + 1]);
  }
  return mhla::io::save(text(path), tensors, options);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(mhla_test, m) {
  m.def("read_checkpoint(str path) -> (str[], Tensor[])", &read_checkpoint);
  m.def("checkpoint_metadata(str path) -> str[]", &checkpoint_metadata);
  m.def("checkpoint_sections(str path) -> str[]", &checkpoint_sections);
  m.def(
      "write_checkpoint(str path, str[] names, Tensor[] values, str[] metadata, int "
      "max_file_bytes) -> str[]",
      &write_checkpoint);
}
