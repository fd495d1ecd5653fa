// Checkpoints of several files, listed by an index.
#include "io/safetensors_index.h"

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/json_events.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

namespace fs = std::filesystem;

template <typename... Values>
[[noreturn]] void corrupt(const std::string& file, Values&&... values) {
  fail(ErrorCode::corrupt_data, "io", "'", file, "': ", std::forward<Values>(values)...);
}

// {"metadata": {anything}, "weight_map": {name: file}}; other keys are passed over.
class IndexEvents : public JsonEvents {
 public:
  explicit IndexEvents(const std::string& file) : file_(file) {}

  ShardIndex result;

  void key(std::string& name) override { (depth_ == 1 ? top_ : key_) = std::move(name); }
  void begin(char bracket) override {
    if (depth_ == 0 && bracket != '{') corrupt(file_, "expected a JSON object");
    if (depth_ == 1 && top_ == "weight_map") {
      if (bracket != '{') corrupt(file_, "'weight_map': expected an object, got a list");
      has_map_ = true;
    }
    if (depth_ == 2 && top_ == "weight_map")
      corrupt(file_, "'weight_map': ", shown(key_), ": expected a file name");
    ++depth_;
  }
  void end() override {
    if (--depth_ == 0 && !has_map_) {
      corrupt(file_, "no 'weight_map'; not the index of a sharded checkpoint");
    }
  }
  void text(std::string& value) override {
    if (depth_ == 2 && top_ == "weight_map") {
      if (!result.shards.emplace(key_, std::move(value)).second) {
        corrupt(file_, "'weight_map': ", shown(key_), " is given twice");
      }
    } else {
      scalar(value);
    }
  }
  void number(std::uint64_t value) override { scalar(std::to_string(value)); }
  void other(const std::string& printed) override { scalar(printed); }

 private:
  void scalar(const std::string& value) {
    if (depth_ == 0) corrupt(file_, "expected a JSON object");
    if (top_ == "weight_map") {
      corrupt(file_, "'weight_map': ", shown(key_), ": expected a file name, got ", shown(value));
    }
    if (depth_ == 2 && top_ == "metadata") result.metadata.emplace(key_, value);
  }

  const std::string& file_;
  int depth_ = 0;
  bool has_map_ = false;
  std::string top_, key_;
};

// The shard's real path. Nothing outside the index's own folder is opened, neither by name nor
// through a link; where the index itself is a link, its target's folder counts as well.
std::string shard_path(const std::string& index, const std::string& shard) {
  if (!is_plain_file_name(shard)) {
    corrupt(index, "shard ", shown(shard), ": expected the plain name of a file beside the index; ",
            "do not use this checkpoint unless you trust its source");
  }
  const fs::path folder = fs::path(index).parent_path();
  std::error_code error;
  const fs::path real = fs::canonical((folder.empty() ? "." : folder) / shard, error);
  if (error) {
    fail(ErrorCode::io, "io", "'", index, "': cannot open shard ", shown(shard), ": ",
         error.message(), "; download the missing file");
  }
  const fs::path own = fs::canonical(folder.empty() ? "." : folder);
  const fs::path target = fs::canonical(index).parent_path();
  if (real.parent_path() != own && real.parent_path() != target) {
    corrupt(index, "shard ", shown(shard), " is a link to ", shown(real.string()),
            ", outside of the folder; put the file itself there");
  }
  return real.string();
}

}  // namespace

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

ShardIndex read_shard_index(const FilePointer& file) {
  const std::string& name = file->name();
  if (file->bytes().size() > kMaxSafetensorsHeader) {
    corrupt(name, "index of ", file->bytes().size(), " bytes, at most ", kMaxSafetensorsHeader,
            " are allowed");
  }
  IndexEvents events(name);
  parse_json(file->bytes(), "'" + name + "'", events);
  return std::move(events.result);
}

Checkpoint open_sharded(const std::string& index_path) {
  ShardIndex index = read_shard_index(FileBytes::map(index_path));
  std::map<std::string, std::vector<std::string>> names;  // file -> tensors
  for (const auto& [tensor, shard] : index.shards) names[shard].push_back(tensor);

  std::vector<FilePointer> files;
  std::vector<Tensor> tensors;
  std::vector<std::string> notes;
  std::string format = "safetensors";
  for (const auto& [shard, wanted] : names) {
    files.push_back(FileBytes::map(shard_path(index_path, shard)));
    const Checkpoint part = Checkpoint::read(files.back());
    format = part.format();
    index.metadata.insert(part.metadata().begin(), part.metadata().end());
    for (const std::string& name : wanted) {
      if (part.find(name) == nullptr) {
        corrupt(index_path, "tensor ", shown(name), " is not in ", shown(shard),
                ", where the index says it is; the files do not belong together");
      }
    }
    // In the order of the shard.
    for (const Tensor& tensor : part.tensors()) {
      const auto found = index.shards.find(tensor.name);
      if (found != index.shards.end() && found->second == shard) {
        tensors.push_back(tensor);
      } else {
        notes.push_back(shown(shard) + " holds " + shown(tensor.name) +
                        ", which the index does not list there: left out");
      }
    }
  }
  return {index_path,      format, std::move(files), std::move(tensors), std::move(index.metadata),
          std::move(notes)};
}

}  // namespace mhla::io
