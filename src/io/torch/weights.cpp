// Checkpoints as LibTorch tensors, and modules loaded from and saved to them.
#include "io/torch/weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "mhla/error.h"

namespace mhla::io {
namespace {

constexpr std::array kTypes = {
    std::pair{ScalarType::f64, at::kDouble},
    std::pair{ScalarType::f32, at::kFloat},
    std::pair{ScalarType::f16, at::kHalf},
    std::pair{ScalarType::bf16, at::kBFloat16},
    std::pair{ScalarType::f8_e4m3, at::kFloat8_e4m3fn},
    std::pair{ScalarType::f8_e5m2, at::kFloat8_e5m2},
    std::pair{ScalarType::c64, at::kComplexFloat},
    std::pair{ScalarType::i64, at::kLong},
    std::pair{ScalarType::i32, at::kInt},
    std::pair{ScalarType::i16, at::kShort},
    std::pair{ScalarType::i8, at::kChar},
    std::pair{ScalarType::u64, at::kUInt64},
    std::pair{ScalarType::u32, at::kUInt32},
    std::pair{ScalarType::u16, at::kUInt16},
    std::pair{ScalarType::u8, at::kByte},
    std::pair{ScalarType::boolean, at::kBool},
};

Shape shape_of(const at::Tensor& tensor) { return tensor.sizes().vec(); }

Shape without_ones(Shape shape) {
  std::erase(shape, 1);
  return shape;
}

// A bool or a float may hold any bits; a byte of 2 as bool is undefined behaviour in C++.
bool holds_bad_bools(const Tensor& tensor) {
  if (tensor.type != ScalarType::boolean) return false;
  std::vector<unsigned char> values(tensor.bytes());
  tensor.copy_to(values.data());
  return std::ranges::any_of(values, [](unsigned char v) { return v > 1; });
}

// What goes where, before anything is copied: a strict load that fails leaves the module as it was.
struct Plan {
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // to, from
  LoadReport report;
};

void plan_one(Plan& plan, const std::string& name, const at::Tensor& to, const at::Tensor& stored,
              const LoadOptions& options) {
  LoadReport& report = plan.report;
  at::Tensor from = stored;
  if (stored.sizes() != to.sizes()) {
    LoadReport::Reshaped change{name, shape_of(stored), shape_of(to), {}};
    if (without_ones(change.stored) == without_ones(change.wanted)) {
      change.how = "the same without axes of size 1";
      from = stored.reshape(to.sizes());
    } else {
      from = options.reshape ? options.reshape(name, stored, change.wanted, change.how)
                             : at::Tensor();
    }
    if (!from.defined()) {
      report.mismatched.push_back(std::move(change));
      return;
    }
    if (from.sizes() != to.sizes()) {
      fail(ErrorCode::internal, "io.load", shown(name), ": reshaping to ", to_string(change.wanted),
           " gave ", to_string(shape_of(from)));
    }
    report.reshaped.push_back(std::move(change));
  }
  report.loaded.push_back(name);
  plan.copies.emplace_back(to, from);
}

Plan make_plan(const StateDict& targets, const StateDict& from, const LoadOptions& options) {
  Plan plan;
  std::map<std::string, std::string> sources;  // name in the model -> name in the file
  for (const auto& [file_name, stored] : from) {
    const std::string name = options.rename ? options.rename(file_name) : file_name;
    if (name.empty()) {
      plan.report.ignored.push_back(file_name);
      continue;
    }
    const auto target = targets.find(name);
    if (target == targets.end()) {
      plan.report.unexpected.push_back(file_name);
      continue;
    }
    const auto [taken, fresh] = sources.emplace(name, file_name);
    if (!fresh) {
      fail("io.load", shown(taken->second), " and ", shown(file_name), " would both become ",
           shown(name));
    }
    plan_one(plan, name, target->second, stored, options);
  }
  for (const auto& [name, tensor] : targets) {
    if (sources.contains(name)) continue;
    const bool allowed = options.may_be_missing && options.may_be_missing(name);
    (allowed ? plan.report.kept : plan.report.missing).push_back(name);
  }
  return plan;
}

LoadReport load_as(torch::nn::Module& module, const StateDict& from, const LoadOptions& options,
                   const std::string& source, const std::vector<std::string>& notes) {
  Plan plan = make_plan(state_dict(module), from, options);
  plan.report.source = source;
  plan.report.notes = notes;
  std::map<std::string, std::size_t> conversions;
  for (const auto& [to, value] : plan.copies) {
    if (to.scalar_type() == value.scalar_type()) continue;
    ++conversions[std::string(c10::toString(value.scalar_type())) + " to " +
                  c10::toString(to.scalar_type())];
  }
  for (const auto& [change, count] : conversions) {
    plan.report.notes.push_back(std::to_string(count) + " tensors converted from " + change);
  }
  if (options.strict) plan.report.require_complete();
  const c10::NoGradGuard no_gradient;
  for (const auto& [to, value] : plan.copies) to.copy_(value);
  return std::move(plan.report);
}

}  // namespace

at::ScalarType to_torch(ScalarType type) {
  for (const auto& [ours, torchs] : kTypes) {
    if (ours == type) return torchs;
  }
  fail(ErrorCode::internal, "io", "no LibTorch type for ", name(type));
}

ScalarType from_torch(at::ScalarType type) {
  for (const auto& [ours, torchs] : kTypes) {
    if (torchs == type) return ours;
  }
  fail("io", "tensors of type ", c10::toString(type), " cannot be saved; convert them first");
}

at::Tensor to_tensor(const Checkpoint& checkpoint, const Tensor& tensor) {
  if (holds_bad_bools(tensor)) {
    fail(ErrorCode::corrupt_data, "io", "'", checkpoint.path(), "': tensor ", shown(tensor.name),
         ": a bool that is neither 0 nor 1; save it again");
  }
  const auto options = at::TensorOptions().dtype(to_torch(tensor.type));
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (tensor.size() > 0 && address % size_of(tensor.type) == 0) {
    FilePointer file = checkpoint.file_of(tensor);
    return at::from_blob(
        const_cast<char*>(tensor.data), tensor.shape, tensor.strides,
        [file = std::move(file)](void*) {}, options);
  }
  at::Tensor copy = at::empty(tensor.shape, options);
  tensor.copy_to(copy.data_ptr());
  return copy;
}

StateDict state_dict(const Checkpoint& checkpoint) {
  StateDict result;
  for (const Tensor& tensor : checkpoint.tensors()) {
    result.emplace(tensor.name, to_tensor(checkpoint, tensor));
  }
  return result;
}

StateDict state_dict(const torch::nn::Module& module) {
  StateDict result;
  for (const auto& item : module.named_parameters()) result.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) result.emplace(item.key(), item.value());
  }
  return result;
}

LoadReport load(torch::nn::Module& module, const StateDict& from, const LoadOptions& options) {
  return load_as(module, from, options,
                 options.source.empty() ? "tensors in memory" : options.source, {});
}

LoadReport load(torch::nn::Module& module, const Checkpoint& from, const LoadOptions& options) {
  return load_as(module, state_dict(from), options,
                 options.source.empty() ? from.path() : options.source, from.notes());
}

LoadReport load(torch::nn::Module& module, const std::string& path, const LoadOptions& options) {
  return load(module, Checkpoint::open(path).weights(), options);
}

Saved write(const std::string& path, const StateDict& tensors, const SaveOptions& options) {
  std::vector<Tensor> views;
  std::vector<at::Tensor> alive;
  for (const auto& [name, value] : tensors) {
    if (!value.defined()) continue;
    if (value.layout() != at::kStrided)
      fail("io.save", shown(name), ": only dense tensors can be saved");
    alive.push_back(value.detach().cpu().resolve_conj().resolve_neg());
    const at::Tensor& host = alive.back();
    views.push_back({.name = name,
                     .section = {},
                     .type = from_torch(host.scalar_type()),
                     .shape = host.sizes().vec(),
                     .strides = host.strides().vec(),
                     .data = static_cast<const char*>(host.const_data_ptr())});
  }
  SaveOptions with_format = options;
  with_format.metadata.emplace("format", "pt");  // transformers refuses files without it
  return write_safetensors(path, views, with_format);
}

std::vector<std::string> save(const std::string& path, const StateDict& tensors,
                              const SaveOptions& options) {
  return write(path, tensors, options).files;
}

std::vector<std::string> save(const std::string& path, const torch::nn::Module& module,
                              const SaveOptions& options) {
  return save(path, state_dict(module), options);
}

}  // namespace mhla::io
