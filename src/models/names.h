// Renaming, joining and splitting the tensors of other packages' checkpoints.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace mhla::models {

using StateDict = std::map<std::string, at::Tensor>;

// Each method works on every name it fits; what no method touches stays.
class Names {
 public:
  explicit Names(StateDict tensors) : tensors_(std::move(tensors)) {}

  bool has(const std::string& name) const { return tensors_.contains(name); }
  bool any(const std::string& part) const;  // some name contains it
  // The first occurrence of `from` becomes `to`; prefix(): only at the beginning.
  Names& replace(const std::string& from, const std::string& to);
  Names& prefix(const std::string& from, const std::string& to);
  // Tensors whose names differ only in which of `parts` they contain, one after another along the
  // first axis: {".to_q.", ".to_k.", ".to_v."} -> ".qkv."
  Names& join(const std::vector<std::string>& parts, const std::string& whole);
  Names& drop(const std::string& part);         // names that contain it
  Names& drop_prefix(const std::string& part);  // names that begin with it
  Names& change(const std::string& part, const std::function<at::Tensor(const at::Tensor&)>& to);

  const at::Tensor& at(const std::string& name) const;
  StateDict take() { return std::move(tensors_); }

 private:
  StateDict tensors_;
};

}  // namespace mhla::models
