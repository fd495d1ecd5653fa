// Nested containers as dotted names, with bounds on depth, visits and text.
#include "io/pytorch_walk.h"

#include <algorithm>
#include <charconv>

#include "io/tensor.h"
#include "mhla/error.h"

namespace mhla::io::pickle {
namespace {

// Shared containers are visited once per path, so a small pickle can ask for any number of visits.
constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxVisits = 1 << 20;
constexpr std::size_t kMaxName = 4096;
constexpr std::size_t kMaxText = 256 << 20;  // of all names and metadata

class Walk {
 public:
  Walk(const Pickle& pickle, const std::string& file, const OnTensor& tensor)
      : pickle_(pickle), file_(file), tensor_(tensor) {}

  Metadata run() {
    const Value& root = pickle_[pickle_.root];
    visit(root, is_tensor(root) ? "tensor" : "", "", 0);
    return std::move(metadata_);
  }

 private:
  static bool is_tensor(const Value& value) {
    return value.kind == Kind::tensor || value.kind == Kind::tensor_3;
  }
  static bool is_container(const Value& value) {
    return value.kind == Kind::list || value.kind == Kind::tuple || value.kind == Kind::dict ||
           value.kind == Kind::object;
  }

  template <typename... Values>
  [[noreturn]] void corrupt(Values&&... values) const {
    fail(ErrorCode::corrupt_data, "io", "'", file_, "': ", std::forward<Values>(values)...,
         "; no checkpoint of weights looks like that, get it from elsewhere");
  }

  void visit(const Value& value, const std::string& name, const std::string& section, int depth) {
    if (depth > kMaxDepth) corrupt(shown(name), " is nested deeper than ", kMaxDepth, " levels");
    if (++visits_ > kMaxVisits) corrupt("more than ", kMaxVisits, " values, counting shared ones");
    if (is_tensor(value)) {
      spend(name);
      tensor_(value, name, section);
    } else if (value.kind == Kind::object) {
      if (!value.items.empty()) visit(pickle_[value.items[0]], name, section, depth + 1);
    } else if (value.kind == Kind::dict) {
      for (std::size_t i = 0; i + 1 < value.items.size(); i += 2) {
        visit(pickle_[value.items[i + 1]], child(name, key(value.items[i], name)), name, depth + 1);
      }
    } else if (is_container(value) && std::ranges::any_of(value.items, [&](Id id) {
                 return is_container(pickle_[id]) || is_tensor(pickle_[id]);
               })) {
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        visit(pickle_[value.items[i]], child(name, std::to_string(i)), name, depth + 1);
      }
    } else {
      const std::string text = is_container(value) ? list_text(value) : scalar_text(value);
      spend(name);
      spend(text);
      metadata_.emplace(name, text);
    }
  }

  std::string key(Id id, const std::string& parent) const {
    const Value& value = pickle_[id];
    if (value.kind == Kind::text) return std::string(value.text.substr(0, kMaxName + 1));
    if (value.kind == Kind::integer) return std::to_string(value.number);
    corrupt("a key of ", shown(parent), " is neither text nor integer");
  }

  std::string child(const std::string& parent, const std::string& key) const {
    if (parent.size() + key.size() > kMaxName) corrupt("a name longer than ", kMaxName, " bytes");
    return parent.empty() ? key : parent + "." + key;
  }

  // Long texts and lists are cut: they are shown, nothing is computed from them.
  std::string scalar_text(const Value& value) const {
    constexpr std::size_t kLongest = 1024;
    char buffer[32];
    switch (value.kind) {
      case Kind::none: return "None";
      case Kind::boolean: return value.number != 0 ? "True" : "False";
      case Kind::integer: return std::to_string(value.number);
      case Kind::real:
        return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value.real).ptr};
      case Kind::text:
        return value.text.size() <= kLongest
                   ? std::string(value.text)
                   : "(text of " + std::to_string(value.text.size()) + " bytes)";
      case Kind::dtype: return name(static_cast<ScalarType>(value.number));
      default: return "(object)";
    }
  }

  std::string list_text(const Value& value) const {
    constexpr std::size_t kLongest = 16;
    if (value.items.size() > kLongest) return "(" + std::to_string(value.items.size()) + " values)";
    std::string text = "[";
    for (const Id id : value.items)
      text += (text.size() > 1 ? ", " : "") + scalar_text(pickle_[id]);
    return text + "]";
  }

  void spend(const std::string& text) {
    text_ += text.size();
    if (text_ > kMaxText) corrupt("names and texts of more than ", kMaxText, " bytes");
  }

  const Pickle& pickle_;
  const std::string& file_;
  const OnTensor& tensor_;
  Metadata metadata_;
  std::size_t visits_ = 0, text_ = 0;
};

}  // namespace

Metadata walk(const Pickle& pickle, const std::string& file, const OnTensor& tensor) {
  return Walk(pickle, file, tensor).run();
}

}  // namespace mhla::io::pickle
