// Checkpoints as LibTorch tensors, and modules loaded from and saved to them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>

#include "io/checkpoint.h"
#include "io/load_report.h"
#include "io/safetensors.h"

namespace torch::nn {
class Module;
}

namespace mhla::io {

at::ScalarType to_torch(ScalarType type);
ScalarType from_torch(at::ScalarType type);  // throws for types that files cannot hold

// What models rename, split and join before loading: names in order, tensors on the CPU.
using StateDict = std::map<std::string, at::Tensor>;

// Shares the mapped file where alignment allows, so that unused tensors cost nothing. Writing to
// such a tensor never changes the file.
at::Tensor to_tensor(const Checkpoint& checkpoint, const Tensor& tensor);
StateDict state_dict(const Checkpoint& checkpoint);

// Parameters and persistent buffers of a module under their dotted names; they share its memory.
StateDict state_dict(const torch::nn::Module& module);

struct LoadOptions {
  // What the report and its error call the origin; the checkpoint's path where there is one.
  std::string source{};
  // Throws with the report's text unless every tensor found its place.
  bool strict = true;
  // The name in the model of a tensor in the file; empty: leave it out, it is reported as ignored.
  std::function<std::string(const std::string& name)> rename{};
  // Called where shapes differ in more than sizes of 1 (a 1x1 convolution loads into a linear layer
  // and the reverse without being asked): position embeddings, mixing matrices. Returns a tensor of
  // the wanted shape, or an undefined one: reported as mismatched. `how` goes into the report.
  std::function<at::Tensor(const std::string& name, const at::Tensor& stored, const Shape& wanted,
                           std::string& how)>
      reshape{};
  // Names in the model that the file may lack, such as the mixing matrices in a stock checkpoint:
  // reported as kept.
  std::function<bool(const std::string& name)> may_be_missing{};
};

// Copies into the module's parameters and buffers, converting type and device.
LoadReport load(torch::nn::Module& module, const StateDict& from, const LoadOptions& options = {});
LoadReport load(torch::nn::Module& module, const Checkpoint& from, const LoadOptions& options = {});
// opens `path` and loads its weights(): the averaged ones where the file has both.
LoadReport load(torch::nn::Module& module, const std::string& path,
                const LoadOptions& options = {});

// Any device and strides; see write_safetensors for files and shards.
Saved write(const std::string& path, const StateDict& tensors, const SaveOptions& options = {});
// The same; the files written.
std::vector<std::string> save(const std::string& path, const StateDict& tensors,
                              const SaveOptions& options = {});
std::vector<std::string> save(const std::string& path, const torch::nn::Module& module,
                              const SaveOptions& options = {});

}  // namespace mhla::io
