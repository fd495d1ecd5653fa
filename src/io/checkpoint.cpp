// Telling the formats apart, finding tensors by name, and picking a section.
#include "io/checkpoint.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <set>
#include <utility>

#include "io/pytorch.h"
#include "io/safetensors.h"
#include "mhla/core/text.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

namespace fs = std::filesystem;

// In this order: what a folder of transformers or diffusers holds.
constexpr std::array kFileNames = {
    "model.safetensors",
    "model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "diffusion_pytorch_model.bin",
};

// Averaged weights first: they are what one evaluates with.
constexpr std::array kWeightSections = {
    "ema",   "model_ema",  "ema_model", "state_dict_ema", "ema_state_dict", "params_ema",
    "model", "state_dict", "module",    "params",         "weights",        "model_state_dict",
    "net",
};

std::string file_in(const fs::path& folder) {
  std::string sought;
  for (const char* name : kFileNames) {
    if (fs::exists(folder / name)) return (folder / name).string();
    sought += (sought.empty() ? "" : ", ") + std::string(name);
  }
  fail(ErrorCode::io, "io", "'", folder.string(), "': no checkpoint in this folder, sought ",
       sought, "; name the file itself");
}

bool is_zip(std::string_view bytes) {
  // Byte 8 of a zip file is a compression method, that of a safetensors file a brace.
  return bytes.starts_with("PK\x03\x04") && !(bytes.size() > 8 && bytes[8] == '{');
}

bool below(const std::string& section, const std::string& name) {
  return section == name || section.starts_with(name + ".");
}

template <typename Names>
std::string joined(const Names& names, std::size_t limit) {
  std::string text;
  std::size_t count = 0;
  for (const auto& each : names) {
    if (count == limit) return text + ", ...";
    text += (count++ == 0 ? "" : ", ") + shown(each);
  }
  return text;
}

}  // namespace

Checkpoint Checkpoint::open(const std::string& path) {
  std::error_code ignored;
  const std::string file = fs::is_directory(path, ignored) ? file_in(path) : path;
  return file.ends_with(".json") ? open_sharded(file) : read(FileBytes::map(file));
}

Checkpoint Checkpoint::read(const FilePointer& file) {
  const std::string_view bytes = file->bytes();
  if (is_zip(bytes)) return read_pytorch(file);
  if (bytes.size() > 8 && bytes[8] == '{') return read_safetensors(file);
  const std::string_view start = bytes.substr(0, 2);
  if (start == "\x80\x02" || start == "\x80\x04" || start == "\x80\x05") {
    fail(ErrorCode::unsupported, "io", "'", file->name(),
         "': a bare pickle, as PyTorch wrote before 1.6 or with "
         "_use_new_zipfile_serialization=False; "
         "load it with torch.load(..., weights_only=True) and torch.save it again");
  }
  fail(ErrorCode::corrupt_data, "io", "'", file->name(), "': ", bytes.size(),
       " bytes that begin with ", shown(bytes.substr(0, 8)),
       " are neither a safetensors file nor a zip of torch.save");
}

Checkpoint::Checkpoint(std::string path, std::string format, std::vector<FilePointer> files,
                       std::vector<Tensor> tensors, Metadata metadata,
                       std::vector<std::string> notes)
    : path_(std::move(path)),
      format_(std::move(format)),
      files_(std::move(files)),
      tensors_(std::move(tensors)),
      by_name_(tensors_.size()),
      metadata_(std::move(metadata)),
      notes_(std::move(notes)) {
  for (std::size_t i = 0; i < by_name_.size(); ++i) by_name_[i] = i;
  const auto name_of = [&](std::size_t i) -> const std::string& { return tensors_[i].name; };
  std::ranges::sort(by_name_, {}, name_of);
  const auto twice = std::ranges::adjacent_find(by_name_, {}, name_of);
  if (twice != by_name_.end()) {
    fail(ErrorCode::corrupt_data, "io", "'", path_, "': two tensors are called ",
         shown(name_of(*twice)), "; write the file again with different names");
  }
}

std::uint64_t Checkpoint::bytes() const {
  std::uint64_t sum = 0;
  for (const Tensor& tensor : tensors_) sum += tensor.bytes();
  return sum;
}

std::vector<std::string> Checkpoint::file_names() const {
  std::vector<std::string> names = {path_};
  for (const FilePointer& file : files_) {
    if (file->name() != path_) names.push_back(file->name());
  }
  return names;
}

const Tensor* Checkpoint::find(std::string_view name) const {
  const auto name_of = [&](std::size_t i) -> std::string_view { return tensors_[i].name; };
  const auto found = std::ranges::lower_bound(by_name_, name, {}, name_of);
  return found != by_name_.end() && name_of(*found) == name ? &tensors_[*found] : nullptr;
}

const Tensor& Checkpoint::at(std::string_view name) const {
  if (const Tensor* tensor = find(name)) return *tensor;
  std::vector<std::string> names;
  for (const Tensor& tensor : tensors_) names.push_back(tensor.name);
  const std::string hint = nearest(name, names);
  fail("io", "'", path_, "': no tensor ", shown(name), " among ", names.size(),
       hint.empty() ? "" : "; did you mean " + shown(hint) + "?");
}

std::vector<std::string> Checkpoint::sections() const {
  std::set<std::string> names;
  for (const Tensor& tensor : tensors_) {
    if (!tensor.section.empty()) names.insert(tensor.section);
  }
  return {names.begin(), names.end()};
}

Checkpoint Checkpoint::section(const std::string& name) const {
  std::vector<Tensor> found;
  for (const Tensor& tensor : tensors_) {
    if (!below(tensor.section, name)) continue;
    Tensor copy = tensor;
    copy.name.erase(0, name.size() + 1);
    copy.section.erase(0, std::min(name.size() + 1, copy.section.size()));
    found.push_back(std::move(copy));
  }
  if (found.empty()) {
    const auto known = sections();
    fail("io", "'", path_, "': no section ", shown(name), "; ",
         known.empty() ? "the file has none" : "there are " + joined(known, 16));
  }
  return {path_, format_, files_, std::move(found), metadata_, notes_};
}

Checkpoint Checkpoint::weights() const {
  for (const char* name : kWeightSections) {
    const bool present = std::ranges::any_of(
        tensors_, [&](const Tensor& t) { return below(t.section, name); });
    if (!present) continue;
    Checkpoint chosen = section(name);
    if (chosen.tensors_.size() < tensors_.size()) {
      chosen.notes_.push_back("weights taken from the section " + shown(name));
    }
    return chosen;
  }
  return *this;
}

const FilePointer& Checkpoint::file_of(const Tensor& tensor) const {
  for (const FilePointer& file : files_) {
    const std::string_view bytes = file->bytes();
    const std::less<> before;  // pointers into different files
    if (tensor.size() == 0) return file;
    if (!before(tensor.data, bytes.data()) && before(tensor.data, bytes.data() + bytes.size())) {
      return file;
    }
  }
  fail("io", "'", path_, "': tensor ", shown(tensor.name), " is not of this checkpoint");
}

}  // namespace mhla::io
