#include "train/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "mhla/core/atomic_file.h"
#include "mhla/core/text.h"
#include "mhla/error.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhere = "train.checkpoint";
constexpr std::string_view kPrefix = "step-", kTemporary = ".tmp-", kOld = ".old-";

std::optional<std::int64_t> number_in(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  return parse_number<std::int64_t>(std::string_view(name).substr(kPrefix.size()));
}

void flush_folder(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  ::fsync(folder);  // some file systems cannot; then there is nothing more to do
  ::close(folder);
}

std::vector<std::pair<std::int64_t, std::string>> all_in(const std::string& folder) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto number = number_in(entry.path().filename().string());
    if (number && entry.is_directory(error)) found.emplace_back(*number, entry.path().string());
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

Checkpoints::Checkpoints(std::string folder, std::int64_t keep)
    : folder_(std::move(folder)), keep_(keep) {
  if (keep < 1) fail("train", "train.keep: expected at least 1, got ", keep);
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) {
    fail(ErrorCode::io, kWhere, "cannot make '", folder_, "': ", error.message());
  }
  // What a killed process left behind.
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    std::error_code ignored;
    if (name.starts_with(kTemporary) || name.starts_with(kOld)) {
      fs::remove_all(entry.path(), ignored);
    }
  }
}

std::optional<std::string> Checkpoints::latest(const std::string& folder) {
  const auto found = all_in(folder);
  if (found.empty()) return std::nullopt;
  return found.back().second;
}

void Checkpoints::save(std::int64_t step, const CheckpointContent& content) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  const fs::path final_path = fs::path(folder_) / name;
  const fs::path temporary = fs::path(folder_) / (std::string(kTemporary) + name);
  std::error_code error;
  if (fs::exists(final_path, error)) return;  // the same step is the same content
  try {
    fs::create_directory(temporary);
    for (const auto& [file, tensors] : content.files) {
      io::save((temporary / (file + ".safetensors")).string(), tensors);
    }
    nlohmann::json state = {{"step", step}, {"version", 1}};
    for (const auto& [key, value] : content.numbers) state[key] = value;
    const std::string text = state.dump(2) + "\n";
    AtomicFile file((temporary / "state.json").string(), kWhere);
    file.write(text.data(), text.size());
    file.commit();
    flush_folder(temporary.string());
    fs::rename(temporary, final_path);
    flush_folder(folder_);
  } catch (const std::exception& problem) {
    fs::remove_all(temporary, error);
    const auto last = latest(folder_);
    fail(ErrorCode::io, kWhere, "step ", step, " could not be saved: ", problem.what(),
         last ? "; the last checkpoint is '" + *last + "'" : "; there is no checkpoint before it");
  }
  remove_old();
}

void Checkpoints::remove_old() const {
  const auto found = all_in(folder_);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep_) < found.size(); ++i) {
    // Under another name first: what is half removed must not look like a checkpoint.
    const fs::path path = found[i].second;
    const fs::path old = path.parent_path() / (std::string(kOld) + path.filename().string());
    std::error_code ignored;
    fs::rename(path, old, ignored);
    if (!ignored) fs::remove_all(old, ignored);
  }
}

std::int64_t step_of(const std::string& checkpoint) {
  const auto number = number_in(fs::path(checkpoint).filename().string());
  if (!number) fail(kWhere, "'", checkpoint, "' is not a checkpoint of a run");
  return *number;
}

void restore(const std::string& checkpoint, const std::string& file, const io::StateDict& into) {
  const std::string path = (fs::path(checkpoint) / (file + ".safetensors")).string();
  const io::Checkpoint stored = io::Checkpoint::open(path);
  const io::StateDict from = io::state_dict(stored);
  const at::NoGradGuard no_gradient;
  for (const auto& [name, tensor] : into) {
    const auto found = from.find(name);
    if (found == from.end() || found->second.sizes() != tensor.sizes()) {
      fail(ErrorCode::corrupt_data, kWhere, "'", path, "' is of another model: '", name, "' is ",
           found == from.end() ? "missing" : "of another shape");
    }
    tensor.copy_(found->second);
  }
  if (from.size() != into.size()) {
    fail(ErrorCode::corrupt_data, kWhere, "'", path, "' is of another model: it holds ",
         from.size(), " tensors, expected ", into.size());
  }
}

}  // namespace mhla::train
