// The report of a load as text.
#include "io/load_report.h"

#include <algorithm>
#include <functional>

#include "mhla/core/text.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

// More would scroll away what matters.
constexpr std::size_t kShown = 20;

template <typename Item>
void list(std::string& text, const char* title, const std::vector<Item>& items,
          const std::function<std::string(const Item&)>& line) {
  if (items.empty()) return;
  text += std::string(title) + " (" + std::to_string(items.size()) + "):\n";
  for (std::size_t i = 0; i < std::min(items.size(), kShown); ++i)
    text += "  " + line(items[i]) + "\n";
  if (items.size() > kShown) text += "  and " + std::to_string(items.size() - kShown) + " more\n";
}

}  // namespace

std::string LoadReport::text() const {
  const std::size_t wanted = loaded.size() + missing.size() + mismatched.size() + kept.size();
  std::string text = "'" + source + "': " + std::to_string(loaded.size()) + " of " +
                     std::to_string(wanted) + " tensors loaded";
  text += complete() ? "\n" : ", the file does not match the model\n";
  using Names = std::function<std::string(const std::string&)>;
  const Names plain = [](const std::string& name) { return shown(name); };
  const Names with_hint = [&](const std::string& name) {
    const std::string hint = nearest(name, unexpected);
    return shown(name) + (hint.empty() ? "" : "  (the file has " + shown(hint) + ")");
  };
  const std::function<std::string(const Reshaped&)> change = [](const Reshaped& r) {
    return shown(r.name) + ": " + to_string(r.stored) + " -> " + to_string(r.wanted) +
           (r.how.empty() ? "" : ", " + r.how);
  };
  list(text, "missing in the file", missing, with_hint);
  list(text, "unexpected in the file", unexpected, plain);
  list(text, "of another shape", mismatched, change);
  list(text, "reshaped", reshaped, change);
  list(text, "kept as initialised", kept, plain);
  list(text, "ignored", ignored, plain);
  for (const std::string& note : notes) text += "note: " + note + "\n";
  return text;
}

void LoadReport::require_complete() const {
  if (!complete()) fail("io.load", text());
}

}  // namespace mhla::io
