// Writing safetensors files, in the order and with the padding of upstream.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "io/precision.h"
#include "io/safetensors.h"
#include "mhla/core/atomic_file.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

using nlohmann::json;
// A tensor and the type it is written in.
struct Item {
  const Tensor* tensor;
  ScalarType type;
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(tensor->size()) * size_of(type); }
};
using Group = std::vector<Item>;

constexpr const char* kWhere = "io.save";

void check(const std::string& path, const std::vector<Tensor>& tensors, const Metadata& metadata) {
  std::set<std::string_view> names;
  for (const Tensor& tensor : tensors) {
    const auto refuse = [&](const char* why) {
      fail(kWhere, "'", path, "': tensor ", shown(tensor.name), ": ", why);
    };
    if (tensor.name == "__metadata__") refuse("the name is taken by the format");
    if (!is_utf8(tensor.name)) refuse("the name is not UTF-8");
    if (!names.insert(tensor.name).second) refuse("given twice");
    if (tensor.strides.size() != tensor.shape.size()) refuse("shape and strides differ in length");
    checked_extent(path, tensor.name, tensor.shape, tensor.type);
    if (tensor.data == nullptr && tensor.size() > 0) refuse("no data");
  }
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key) || !is_utf8(value)) {
      fail(kWhere, "'", path, "': metadata ", shown(key), " is not UTF-8");
    }
  }
}

// The widest types first, so that every tensor begins at a multiple of its element's size.
void sort_for_alignment(Group& group) {
  std::ranges::sort(group, [](const Item& a, const Item& b) {
    const std::size_t wa = size_of(a.type), wb = size_of(b.type);
    return wa != wb           ? wa > wb
           : a.type != b.type ? a.type < b.type
                              : a.tensor->name < b.tensor->name;
  });
}

std::string header(const Group& group, const Metadata& metadata) {
  // NOTE: nlohmann's ordered object searches its keys one by one, so the text is joined by hand.
  std::string text = metadata.empty() ? "{" : "{\"__metadata__\":" + json(metadata).dump();
  std::uint64_t begin = 0;
  for (const Item& item : group) {
    const std::uint64_t end = begin + item.bytes();
    const json entry = {{"dtype", safetensors_name(item.type)},
                        {"shape", item.tensor->shape},
                        {"data_offsets", {begin, end}}};
    text += (text.size() > 1 ? "," : "") + json(item.tensor->name).dump() + ":" + entry.dump();
    begin = end;
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

void write_converted(AtomicFile& file, const Item& item, const char* row_major, Saved& saved) {
  constexpr std::size_t kPiece = 1 << 20;  // elements: a few MiB, whatever the tensor's size
  const std::size_t count = static_cast<std::size_t>(item.tensor->size());
  std::vector<char> piece(std::min(count, kPiece) * size_of(item.type));
  for (std::size_t i = 0; i < count; i += kPiece) {
    const std::size_t n = std::min(kPiece, count - i);
    const char* from = row_major + i * size_of(item.tensor->type);
    saved.overflowed += convert_elements(from, item.tensor->type, piece.data(), item.type, n);
    file.write(piece.data(), n * size_of(item.type));
  }
}

void write_one(const std::string& path, Group group, const Metadata& metadata, Saved& saved) {
  sort_for_alignment(group);
  const std::string text = header(group, metadata);
  const std::uint64_t length = text.size();
  if (length > kMaxSafetensorsHeader) {
    fail(kWhere, "'", path, "': a header of ", length, " bytes, at most ", kMaxSafetensorsHeader,
         " are allowed; set max_file_bytes to split it");
  }
  AtomicFile file(path, kWhere);
  file.write(&length, sizeof length);
  file.write(text.data(), text.size());
  std::string gathered;
  for (const Item& item : group) {
    const Tensor& tensor = *item.tensor;
    const bool converts = item.type != tensor.type;
    ++saved.tensors;
    saved.bytes += item.bytes();
    saved.converted += converts;
    if (tensor.size() == 0) continue;
    const char* data = tensor.data;
    if (!tensor.row_major()) {
      gathered.resize(tensor.bytes());
      tensor.copy_to(gathered.data());
      data = gathered.data();
    }
    converts ? write_converted(file, item, data, saved) : file.write(data, tensor.bytes());
  }
  file.commit();
}

// In the order given: tensors of a layer stay together.
std::vector<Group> split(const std::vector<Tensor>& tensors, const SaveOptions& options) {
  const std::uint64_t limit = options.max_file_bytes;
  std::vector<Group> groups(1);
  std::uint64_t filled = 0;
  for (const Tensor& tensor : tensors) {
    const bool converts = options.precision && is_floating(tensor.type);
    const Item item{&tensor, converts ? *options.precision : tensor.type};
    if (limit > 0 && !groups.back().empty() && item.bytes() > limit - std::min(filled, limit)) {
      groups.emplace_back();
      filled = 0;
    }
    groups.back().push_back(item);
    filled += item.bytes();
  }
  return groups;
}

// The files of `count` groups, the one to open first in front.
std::vector<std::string> file_names(const std::string& path, std::size_t count) {
  if (count == 1) return {path};
  constexpr std::string_view kSuffix = ".safetensors";
  if (!path.ends_with(kSuffix)) {
    fail(kWhere, "'", path, "': ", count, " files need a name that ends in ", kSuffix);
  }
  const std::string stem = path.substr(0, path.size() - kSuffix.size());
  std::vector<std::string> names = {path + ".index.json"};
  for (std::size_t i = 0; i < count; ++i) {
    char number[48];
    std::snprintf(number, sizeof number, "-%05zu-of-%05zu.safetensors", i + 1, count);
    names.push_back(stem + number);
  }
  return names;
}

// A checkpoint of several files that could not be finished leaves none of them behind.
class NewFiles {
 public:
  NewFiles() = default;
  NewFiles(const NewFiles&) = delete;
  NewFiles& operator=(const NewFiles&) = delete;
  ~NewFiles() {
    std::error_code ignored;
    for (const std::string& name : names_) std::filesystem::remove(name, ignored);
  }
  void add(const std::string& name) { names_.push_back(name); }
  void stay() { names_.clear(); }

 private:
  std::vector<std::string> names_;
};

// Through links and other spellings of the same path, too.
void check_kept(const std::vector<std::string>& names, const std::vector<std::string>& keep) {
  for (const std::string& name : names) {
    for (const std::string& kept : keep) {
      std::error_code ignored;
      if (name != kept && !std::filesystem::equivalent(name, kept, ignored)) continue;
      fail(kWhere, "'", name, "' is what is being read; write to another name");
    }
  }
}

}  // namespace

Saved write_safetensors(const std::string& path, const std::vector<Tensor>& tensors,
                        const SaveOptions& options) {
  check(path, tensors, options.metadata);
  if (options.precision && !can_round_to(*options.precision)) {
    fail(kWhere, "precision: expected f64, f32, f16 or bf16, got ", name(*options.precision));
  }
  const std::vector<Group> groups = split(tensors, options);
  Saved saved{.files = file_names(path, groups.size())};
  check_kept(saved.files, options.keep);
  if (groups.size() == 1) {
    write_one(path, groups.front(), options.metadata, saved);
    return saved;
  }
  const std::size_t slash = path.rfind('/') + 1;  // 0 where there is none
  json map = json::object();
  NewFiles shards;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string& file = saved.files[i + 1];
    write_one(file, groups[i], options.metadata, saved);
    shards.add(file);
    for (const Item& item : groups[i]) map[item.tensor->name] = file.substr(slash);
  }
  const json index = {{"metadata", {{"total_size", saved.bytes}}}, {"weight_map", std::move(map)}};
  const std::string text = index.dump(2) + "\n";
  AtomicFile file(saved.files.front(), kWhere);
  file.write(text.data(), text.size());
  file.commit();
  shards.stay();
  return saved;
}

std::vector<std::string> save_safetensors(const std::string& path,
                                          const std::vector<Tensor>& tensors,
                                          const SaveOptions& options) {
  return write_safetensors(path, tensors, options).files;
}

}  // namespace mhla::io
