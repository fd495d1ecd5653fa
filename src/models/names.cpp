#include "models/names.h"

#include <ATen/ops/cat.h>

#include "mhla/error.h"

namespace mhla::models {
namespace {

using Rename = std::function<std::string(const std::string&)>;

StateDict renamed(StateDict tensors, const Rename& rename) {
  StateDict result;
  for (auto& [name, tensor] : tensors) {
    std::string to = rename(name);
    if (!result.emplace(to, tensor).second) {
      fail(ErrorCode::corrupt_data, "models", "two tensors would be named ", to);
    }
  }
  return result;
}

}  // namespace

bool Names::any(const std::string& part) const {
  for (const auto& [name, tensor] : tensors_) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

Names& Names::replace(const std::string& from, const std::string& to) {
  tensors_ = renamed(std::move(tensors_), [&](std::string name) {
    const std::size_t at = name.find(from);
    return at == std::string::npos ? name : name.replace(at, from.size(), to);
  });
  return *this;
}

Names& Names::prefix(const std::string& from, const std::string& to) {
  tensors_ = renamed(std::move(tensors_), [&](const std::string& name) {
    return name.starts_with(from) ? to + name.substr(from.size()) : name;
  });
  return *this;
}

Names& Names::join(const std::vector<std::string>& parts, const std::string& whole) {
  StateDict result;
  for (const auto& [name, tensor] : tensors_) {
    std::size_t which = parts.size(), at = std::string::npos;
    for (std::size_t i = 0; i < parts.size() && which == parts.size(); ++i) {
      at = name.find(parts[i]);
      if (at != std::string::npos) which = i;
    }
    if (which == parts.size()) {
      result.emplace(name, tensor);
      continue;
    }
    if (which != 0) continue;  // taken with the first part
    const std::string before = name.substr(0, at), after = name.substr(at + parts[0].size());
    std::vector<at::Tensor> pieces;
    for (const std::string& part : parts) pieces.push_back(this->at(before + part + after));
    result.emplace(before + whole + after, at::cat(pieces, 0));
  }
  tensors_ = std::move(result);
  return *this;
}

Names& Names::drop(const std::string& part) {
  std::erase_if(tensors_,
                [&](const auto& item) { return item.first.find(part) != std::string::npos; });
  return *this;
}

Names& Names::drop_prefix(const std::string& part) {
  std::erase_if(tensors_, [&](const auto& item) { return item.first.starts_with(part); });
  return *this;
}

Names& Names::change(const std::string& part,
                     const std::function<at::Tensor(const at::Tensor&)>& to) {
  for (auto& [name, tensor] : tensors_) {
    if (name.find(part) != std::string::npos) tensor = to(tensor);
  }
  return *this;
}

const at::Tensor& Names::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  fail(ErrorCode::corrupt_data, "models", "the checkpoint has no tensor ", name);
}

}  // namespace mhla::models
