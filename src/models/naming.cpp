#include "models/naming.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "mhla/error.h"

namespace mhla::models {
namespace {

// What a pattern left open: the layer's number and what follows its last dot.
struct Match {
  std::string number, rest;
};

std::optional<Match> match(const std::string& pattern, const std::string& name) {
  Match found;
  std::size_t at = 0;
  for (const char c : pattern) {
    if (c != '*') {
      if (at == name.size() || name[at++] != c) return std::nullopt;
      continue;
    }
    while (at < name.size() && name[at] >= '0' && name[at] <= '9') found.number += name[at++];
    if (found.number.empty()) return std::nullopt;
  }
  found.rest = name.substr(at);
  // A pattern without a dot at its end is a whole name; with one, what follows has no more.
  const bool open = pattern.ends_with('.');
  if (open == found.rest.empty() || found.rest.find('.') != std::string::npos) return std::nullopt;
  return found;
}

std::string filled(const std::string& pattern, const Match& match) {
  std::string name = pattern;
  const std::size_t star = name.find('*');
  if (star != std::string::npos) name.replace(star, 1, match.number);
  return name + match.rest;
}

bool has_star(const std::string& pattern) { return pattern.find('*') != std::string::npos; }
// Every layer there holds a copy of what is one tensor here.
bool repeated(const Naming::Part& part) {
  return !has_star(part.ours) && has_star(part.theirs.front());
}

void put(StateDict& tensors, const std::string& name, const at::Tensor& tensor) {
  if (tensors.emplace(name, tensor).second) return;
  fail(ErrorCode::corrupt_data, "models", "two tensors of the checkpoint would be named ", name);
}

class Reader {
 public:
  Reader(const Naming& naming, const StateDict& theirs) : naming_(naming), theirs_(theirs) {}

  StateDict run(std::vector<std::string>& notes) {
    for (const auto& [name, tensor] : theirs_) {
      if (!place(name, tensor)) put(result_, name, tensor);
    }
    notes.push_back("names of " + naming_.network);
    if (differing_ > 0) {
      notes.push_back(std::to_string(differing_) +
                      " copies in later layers differ from the first layer's, which are taken");
    }
    return std::move(result_);
  }

 private:
  bool place(const std::string& name, const at::Tensor& tensor) {
    for (const std::string& part : naming_.computed) {
      if (name.find(part) != std::string::npos) return true;
    }
    for (const Naming::Part& part : naming_.parts) {
      for (std::size_t i = 0; i < part.theirs.size(); ++i) {
        if (const auto found = match(part.theirs[i], name)) return place(part, i, *found, tensor);
      }
    }
    return false;
  }

  bool place(const Naming::Part& part, std::size_t index, const Match& found,
             const at::Tensor& tensor) {
    const auto first = theirs_.find(filled(part.theirs.front(), found));
    if (repeated(part)) {
      if (found.number == "0") return put(result_, filled(part.ours, found), tensor), true;
      const auto original = theirs_.find(filled(part.theirs.front(), {"0", found.rest}));
      if (original == theirs_.end()) return false;
      differing_ += !original->second.equal(tensor);
      return true;
    }
    if (index > 0) return first != theirs_.end();  // taken with the first
    std::vector<at::Tensor> pieces;
    for (const std::string& pattern : part.theirs) {
      const std::string name = filled(pattern, found);
      const auto piece = theirs_.find(name);
      if (piece == theirs_.end()) {
        fail(ErrorCode::corrupt_data, "models", "the checkpoint has ", first->first, ", but no ",
             name, ": it is incomplete, get it again");
      }
      pieces.push_back(piece->second);
    }
    put(result_, filled(part.ours, found), pieces.size() == 1 ? pieces[0] : at::cat(pieces, 0));
    return true;
  }

  const Naming& naming_;
  const StateDict& theirs_;
  StateDict result_;
  std::int64_t differing_ = 0;
};

void write_part(const Naming& naming, const Naming::Part& part, const Match& found,
                const at::Tensor& tensor, StateDict& result) {
  if (repeated(part)) {
    for (std::int64_t i = 0; i < naming.layers; ++i) {
      put(result, filled(part.theirs.front(), {std::to_string(i), found.rest}), tensor);
    }
    return;
  }
  const auto count = static_cast<std::int64_t>(part.theirs.size());
  if (count == 1) return put(result, filled(part.theirs.front(), found), tensor);
  const auto pieces = tensor.chunk(count, 0);
  for (std::size_t i = 0; i < part.theirs.size(); ++i) {
    put(result, filled(part.theirs[i], found), pieces[i]);
  }
}

}  // namespace

Naming& Naming::same(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) parts.push_back({pattern, {pattern}});
  return *this;
}

StateDict read_as(const Naming& naming, StateDict theirs, std::vector<std::string>& notes) {
  return Reader(naming, theirs).run(notes);
}

StateDict write_as(const Naming& naming, const StateDict& ours,
                   std::vector<std::string>& without_place) {
  StateDict result;
  for (const auto& [name, tensor] : ours) {
    bool placed = false;
    for (const Naming::Part& part : naming.parts) {
      const auto found = match(part.ours, name);
      if (!found) continue;
      write_part(naming, part, *found, tensor, result);
      placed = true;
      break;
    }
    if (!placed) without_place.push_back(name);
  }
  return result;
}

bool any_contains(const StateDict& tensors, const std::string& part) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const auto& item) { return item.first.find(part) != std::string::npos; });
}

void drop_containing(StateDict& tensors, const std::string& part) {
  std::erase_if(tensors,
                [&](const auto& item) { return item.first.find(part) != std::string::npos; });
}

void rename_prefix(StateDict& tensors, const std::string& from, const std::string& to) {
  StateDict result;
  for (const auto& [name, tensor] : tensors) {
    put(result, name.starts_with(from) ? to + name.substr(from.size()) : name, tensor);
  }
  tensors = std::move(result);
}

ConfigText& ConfigText::line(const char* key, const std::string& value) {
  lines_ += std::string(lines_.empty() ? "" : ",\n") + "  \"" + key + "\": " + value;
  return *this;
}

ConfigText& ConfigText::add(const char* key, const std::string& value) {
  return line(key, "\"" + value + "\"");
}
ConfigText& ConfigText::add(const char* key, std::int64_t value) {
  return line(key, std::to_string(value));
}
ConfigText& ConfigText::add(const char* key, double value) {
  char digits[32];
  return line(key, {digits, std::to_chars(digits, digits + sizeof digits, value).ptr});
}
ConfigText& ConfigText::add(const char* key, bool value) {
  return line(key, value ? "true" : "false");
}
ConfigText& ConfigText::add(const char* key, const std::vector<std::int64_t>& values) {
  std::string text;
  for (const std::int64_t value : values) {
    text += (text.empty() ? "" : ", ") + std::to_string(value);
  }
  return line(key, "[" + text + "]");
}

}  // namespace mhla::models
