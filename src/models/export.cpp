// Networks under the names of other packages.
#include <algorithm>

#include "mhla/core/text.h"
#include "mhla/error.h"
#include "models/model.h"

namespace mhla::models {
namespace {

constexpr const char* kUpstream = "upstream";

std::string listed(const std::vector<std::string>& words, std::size_t most) {
  std::string text;
  for (std::size_t i = 0; i < std::min(words.size(), most); ++i) {
    text += (i == 0 ? "" : ", ") + words[i];
  }
  return words.size() > most ? text + " ..." : text;
}

}  // namespace

StateDict Model::state() const {
  StateDict result;
  for (const auto& item : named_parameters()) result.emplace(item.key(), item.value().detach());
  for (const auto& item : named_buffers()) {
    if (item.value().defined()) result.emplace(item.key(), item.value());
  }
  return result;
}

std::vector<std::string> Model::packages() const {
  std::vector<std::string> names{kUpstream};
  for (const Naming& naming : namings()) names.push_back(naming.package);
  return names;
}

Exported Model::export_as(const std::string& package, bool partial) const {
  if (package == kUpstream) return {.tensors = state()};
  for (const Naming& naming : namings()) {
    if (naming.package != package) continue;
    std::vector<std::string> without_place, lost;
    Exported result{.tensors = write_as(naming, state(), without_place)};
    for (const std::string& each : without_place) {
      if (may_lack(each)) {
        result.notes.push_back(each + " is left out: " + naming.network + " has none");
      } else {
        lost.push_back(each);
      }
    }
    if (!partial && !naming.differs.empty()) {
      fail("models", name, ": ", naming.differs, ": ", package,
           " would compute something else; partial writes the common tensors all the same, ",
           "upstream keeps this network's own names");
    }
    if (!partial && !lost.empty()) {
      fail("models", name, ": ", naming.network, " has no place for ", lost.size(), " tensors (",
           listed(lost, 3), "); partial leaves them out, upstream keeps this network's own names");
    }
    if (!naming.differs.empty()) result.notes.push_back(naming.differs);
    for (const std::string& remark : naming.remarks) result.notes.push_back(remark);
    result.left_out = std::move(without_place);
    result.config = naming.config;
    return result;
  }
  const std::string near = nearest(package, packages());
  fail("models", name, " is not known to '", package, "'",
       near.empty() ? "" : "; did you mean '" + near + "'?",
       " (names of: ", listed(packages(), packages().size()), ")");
}

}  // namespace mhla::models
