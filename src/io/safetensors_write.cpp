// Writing safetensors files, in the order and with the padding of upstream.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "mhla/core/atomic_file.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

using nlohmann::json;
using Group = std::vector<const Tensor*>;

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
  std::ranges::sort(group, [](const Tensor* a, const Tensor* b) {
    const std::size_t wa = size_of(a->type), wb = size_of(b->type);
    return wa != wb ? wa > wb : a->type != b->type ? a->type < b->type : a->name < b->name;
  });
}

std::string header(const Group& group, const Metadata& metadata) {
  // NOTE: nlohmann's ordered object searches its keys one by one, so the text is joined by hand.
  std::string text = metadata.empty() ? "{" : "{\"__metadata__\":" + json(metadata).dump();
  std::uint64_t begin = 0;
  for (const Tensor* tensor : group) {
    const std::uint64_t end = begin + tensor->bytes();
    const json entry = {{"dtype", safetensors_name(tensor->type)},
                        {"shape", tensor->shape},
                        {"data_offsets", {begin, end}}};
    text += (text.size() > 1 ? "," : "") + json(tensor->name).dump() + ":" + entry.dump();
    begin = end;
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

void write_one(const std::string& path, Group group, const Metadata& metadata) {
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
  for (const Tensor* tensor : group) {
    if (tensor->size() == 0) continue;
    if (tensor->row_major()) {
      file.write(tensor->data, tensor->bytes());
    } else {
      gathered.resize(tensor->bytes());
      tensor->copy_to(gathered.data());
      file.write(gathered.data(), gathered.size());
    }
  }
  file.commit();
}

// In the order given: tensors of a layer stay together.
std::vector<Group> split(const std::vector<Tensor>& tensors, std::uint64_t limit) {
  std::vector<Group> groups(1);
  std::uint64_t filled = 0;
  for (const Tensor& tensor : tensors) {
    if (limit > 0 && !groups.back().empty() && tensor.bytes() > limit - std::min(filled, limit)) {
      groups.emplace_back();
      filled = 0;
    }
    groups.back().push_back(&tensor);
    filled += tensor.bytes();
  }
  return groups;
}

}  // namespace

std::vector<std::string> save_safetensors(const std::string& path,
                                          const std::vector<Tensor>& tensors,
                                          const SaveOptions& options) {
  check(path, tensors, options.metadata);
  const std::vector<Group> groups = split(tensors, options.max_file_bytes);
  if (groups.size() == 1) {
    write_one(path, groups.front(), options.metadata);
    return {path};
  }
  constexpr std::string_view kSuffix = ".safetensors";
  if (!path.ends_with(kSuffix)) {
    fail(kWhere, "'", path, "': ", groups.size(), " files need a name that ends in ", kSuffix);
  }
  const std::string stem = path.substr(0, path.size() - kSuffix.size());
  const std::size_t slash = stem.rfind('/') + 1;  // 0 where there is none
  std::vector<std::string> written = {path + ".index.json"};
  json map = json::object();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    char number[48];
    std::snprintf(number, sizeof number, "-%05zu-of-%05zu.safetensors", i + 1, groups.size());
    written.push_back(stem + number);
    write_one(written.back(), groups[i], options.metadata);
    for (const Tensor* tensor : groups[i]) {
      map[tensor->name] = written.back().substr(slash);
      total += tensor->bytes();
    }
  }
  const json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  const std::string text = index.dump(2) + "\n";
  AtomicFile file(written.front(), kWhere);
  file.write(text.data(), text.size());
  file.commit();
  return written;
}

}  // namespace mhla::io
