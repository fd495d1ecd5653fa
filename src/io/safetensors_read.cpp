// Reading one safetensors file.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/json_events.h"
#include "io/safetensors.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

struct Entry {
  Tensor tensor;
  std::uint64_t begin = 0, end = 0;
};

// {"__metadata__": {text: text}, name: {"dtype": text, "shape": [...], "data_offsets": [a, b]}}
class Header : public JsonEvents {
 public:
  explicit Header(const std::string& file) : file_(file) {}

  std::vector<Entry> entries;
  Metadata metadata;

  void key(std::string& name) override {
    key_ = std::move(name);
    if (depth_ == 1) {
      in_metadata_ = key_ == "__metadata__";
      name_ = key_;
      if (in_metadata_ && std::exchange(seen_metadata_, true)) refuse("given twice");
    } else if (!in_metadata_) {
      const bool again = key_ == "dtype"          ? type_.has_value()
                         : key_ == "shape"        ? seen_shape_
                         : key_ == "data_offsets" ? seen_offsets_
                                                  : (refuse("unknown key " + shown(key_)), true);
      if (again) refuse(shown(key_) + " is given twice");
    }
  }

  void begin(char bracket) override {
    const bool wanted = depth_ < 2 ? bracket == '{'
                                   : depth_ == 2 && !in_metadata_ && bracket == '[' &&
                                         (key_ == "shape" || key_ == "data_offsets");
    if (!wanted) refuse(std::string("unexpected '") + bracket + "'" + at_key());
    if (++depth_ == 3) (key_ == "shape" ? seen_shape_ : seen_offsets_) = true;
  }

  void end() override {
    if (--depth_ != 1 || in_metadata_) return;
    if (!type_ || !seen_shape_ || !seen_offsets_) {
      refuse("expected 'dtype', 'shape' and 'data_offsets'");
    }
    if (offsets_.size() != 2) {
      refuse("'data_offsets': expected 2 numbers, got " + std::to_string(offsets_.size()));
    }
    Entry& entry = entries.emplace_back();
    entry.tensor.name = std::move(name_);
    entry.tensor.type = *type_;
    entry.tensor.shape = std::move(shape_);
    entry.begin = offsets_[0];
    entry.end = offsets_[1];
    type_.reset();
    shape_.clear();
    offsets_.clear();
    seen_shape_ = seen_offsets_ = false;
  }

  void text(std::string& value) override {
    if (depth_ == 2 && in_metadata_) {
      if (!metadata.emplace(key_, std::move(value)).second) refuse(shown(key_) + " is given twice");
      return;
    }
    if (depth_ != 2 || key_ != "dtype") refuse("unexpected text " + shown(value) + at_key());
    type_ = parse_safetensors_name(value);
    if (type_) return;
    fail(ErrorCode::unsupported, "io", "'", file_, "': tensor ", shown(name_), ": unknown dtype ",
         shown(value),
         "; convert it to one of F64 F32 F16 BF16 F8_E4M3 F8_E5M2 C64 I64 I32 I16 I8 ",
         "U64 U32 U16 U8 BOOL");
  }

  void number(std::uint64_t value) override {
    if (depth_ != 3) refuse("unexpected number " + std::to_string(value) + at_key());
    if (key_ == "data_offsets") {
      offsets_.push_back(value);
    } else if (value > INT64_MAX) {
      refuse("size " + std::to_string(value) + " is larger than 2^63");
    } else {
      shape_.push_back(static_cast<std::int64_t>(value));
    }
  }

  void other(const std::string& printed) override {
    refuse("unexpected value " + shown(printed) + at_key());
  }

 private:
  std::string at_key() const { return key_.empty() ? "" : " at " + shown(key_); }

  [[noreturn]] void refuse(const std::string& why) const {
    fail(ErrorCode::corrupt_data, "io", "'", file_, "': tensor ", shown(name_), ": ", why,
         "; not a safetensors header, write the file again");
  }

  const std::string& file_;
  int depth_ = 0;
  bool in_metadata_ = false, seen_metadata_ = false;
  std::string name_, key_;
  std::optional<ScalarType> type_;
  Shape shape_;
  std::vector<std::uint64_t> offsets_;
  bool seen_shape_ = false, seen_offsets_ = false;
};

template <typename... Values>
[[noreturn]] void corrupt(const std::string& file, Values&&... values) {
  fail(ErrorCode::corrupt_data, "io", "'", file, "': ", std::forward<Values>(values)...);
}

std::string_view header_of(const std::string& file, std::string_view bytes) {
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) {
    corrupt(file, "truncated: ", bytes.size(), " bytes are too few for a safetensors file");
  }
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > kMaxSafetensorsHeader) {
    corrupt(file, "header of ", length, " bytes, at most ", kMaxSafetensorsHeader,
            " are allowed; not a safetensors file");
  }
  if (length > bytes.size() - sizeof length) {
    corrupt(file, "truncated: the header takes ", length, " bytes, ", bytes.size() - sizeof length,
            " are left; download or copy it again");
  }
  const std::string_view header = bytes.substr(sizeof length, length);
  if (!header.starts_with('{')) corrupt(file, "not a safetensors file: no JSON object at byte 8");
  return header;
}

void check_range(const std::string& file, const Entry& entry, std::uint64_t available) {
  const Tensor& tensor = entry.tensor;
  const std::uint64_t needed = checked_extent(file, tensor.name, tensor.shape, tensor.type).bytes;
  if (entry.begin > entry.end) {
    corrupt(file, "tensor ", shown(tensor.name), ": data_offsets ", entry.begin, " to ", entry.end,
            " run backwards; write the file again");
  }
  if (entry.end - entry.begin != needed) {
    corrupt(file, "tensor ", shown(tensor.name), ": data_offsets ", entry.begin, " to ", entry.end,
            " hold ", entry.end - entry.begin, " bytes, but ", safetensors_name(tensor.type), " ",
            to_string(tensor.shape), " needs ", needed, "; write the file again");
  }
  if (entry.end > available) {
    corrupt(file, "truncated: tensor ", shown(tensor.name), " ends at byte ", entry.end, " of ",
            available, "; download or copy it again");
  }
}

// Every byte belongs to exactly one tensor, as upstream demands: nothing can hide between them.
void check_cover(const std::string& file, std::vector<Entry>& entries, std::uint64_t available) {
  std::ranges::stable_sort(entries, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
  std::uint64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != covered) {
      corrupt(file, "tensor ", shown(entry.tensor.name), " begins at byte ", entry.begin,
              entry.begin < covered ? ", inside the one before it, which ends at "
                                    : ", after unused bytes from ",
              covered, "; write the file again");
    }
    covered = entry.end;
  }
  if (covered != available) {
    corrupt(file, available - covered, " bytes after the last tensor belong to none; ",
            "write the file again");
  }
}

}  // namespace

Checkpoint read_safetensors(const FilePointer& file) {
  const std::string& name = file->name();
  const std::string_view bytes = file->bytes(), json = header_of(name, bytes);
  Header header(name);
  parse_json(json, "'" + name + "': header", header);
  const std::string_view data = bytes.substr(sizeof(std::uint64_t) + json.size());
  for (const Entry& entry : header.entries) check_range(name, entry, data.size());
  check_cover(name, header.entries, data.size());
  std::vector<Tensor> tensors;
  tensors.reserve(header.entries.size());
  for (Entry& entry : header.entries) {
    entry.tensor.strides = row_major_strides(entry.tensor.shape);
    entry.tensor.data = data.data() + entry.begin;
    tensors.push_back(std::move(entry.tensor));
  }
  return {name, "safetensors", {file}, std::move(tensors), std::move(header.metadata)};
}

}  // namespace mhla::io
