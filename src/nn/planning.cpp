#include "nn/planning.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <array>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "mhla/error.h"
#include "nn/tensor_view.h"

namespace mhla::nn {
namespace {

// Plans are small; a program that sees more descriptions than this starts over.
constexpr std::size_t kMaxPlans = 4096;

void append_sizes(std::string& text, at::IntArrayRef sizes, std::size_t axes, const char* suffix) {
  if (sizes.size() % axes != 0) {
    fail("attention", "sizes", suffix, ": expected ", axes, " numbers per sequence, got ",
         sizes.size());
  }
  text += axes == 1 ? "sequence" : "grid";
  text += suffix;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    text += i == 0 ? '=' : (i % axes == 0 ? '+' : 'x');
    text += std::to_string(sizes[i]);
  }
  text += ' ';
}

// The number of axes is that of `block=AxB` or `blocks=AxB`.
std::size_t axes_of(c10::string_view options, std::string_view suffix) {
  const std::string_view text(options.data(), options.size());
  for (const std::string_view word : {"block", "blocks"}) {
    const std::string key = std::string(word) + std::string(suffix) + "=";
    const auto at = text.find(key);
    if (at == std::string_view::npos || (at > 0 && text[at - 1] != ' ')) continue;
    const auto value = text.substr(at + key.size(), text.find(' ', at) - at - key.size());
    std::size_t axes = 1;
    for (const char c : value) axes += c == 'x';
    return axes;
  }
  return 1;
}

void expect_rank(const char* name, const at::Tensor& tensor) {
  if (tensor.dim() != 4) {
    std::ostringstream shape;
    shape << tensor.sizes();
    fail("attention", name, ": expected [B, N, H, D], got ", shape.str());
  }
}

// Everything a plan depends on.
struct Key {
  std::string options;
  std::vector<std::int64_t> sizes;
  std::array<std::int64_t, 13> numbers;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::size_t hash = std::hash<std::string>{}(key.options);
    const auto add = [&hash](std::int64_t value) {
      hash = (hash ^ static_cast<std::size_t>(value)) * 0x9E3779B97F4A7C15u;
    };
    for (const auto value : key.sizes) add(value);
    for (const auto value : key.numbers) add(value);
    return hash;
  }
};

// f32 products of this call may be rounded to TF32: what the user allowed PyTorch's own products.
bool through_tf32(const Tensors& t) {
  return t.q.is_cuda() && t.q.scalar_type() == at::kFloat && at::globalContext().allowTF32CuBLAS();
}

std::array<std::int64_t, 13> numbers_of(const Tensors& t, const Description& d) {
  return {t.q.size(0),
          t.q.size(1),
          t.k.size(1),
          t.q.size(2),
          t.q.size(3),
          t.v.size(3),
          static_cast<std::int64_t>(t.q.scalar_type()),
          t.q.is_cuda() ? 1 + t.q.get_device() : 0,
          t.mixing.dim(),
          t.q_den.defined(),
          static_cast<std::int64_t>(d.sizes.size()),
          at::get_num_threads(),
          through_tf32(t)};
}

bool same(const Key& key, const Description& d, const std::array<std::int64_t, 13>& numbers) {
  if (key.numbers != numbers || key.sizes.size() != d.sizes.size() + d.sizes_k.size()) return false;
  return std::equal(d.sizes.begin(), d.sizes.end(), key.sizes.begin()) &&
         std::equal(d.sizes_k.begin(), d.sizes_k.end(), key.sizes.begin() + d.sizes.size()) &&
         std::string_view(key.options) == std::string_view(d.options.data(), d.options.size());
}

// One warning per process and cause, since a model makes the same call in every layer.
void warn_if_slow(const Plan& plan) {
  if (plan.implementation() != "reference") return;
  std::string why;
  for (const auto& candidate : plan.candidates()) {
    if (!candidate.chosen) why += "; " + candidate.implementation + ": " + candidate.reason;
  }
  static std::mutex mutex;
  static std::set<std::string> known;
  {
    const std::lock_guard lock(mutex);
    if (!known.insert(why).second) return;
  }
  TORCH_WARN("mhla: ", plan.problem().to_string(), " is served by the slow reference", why,
             " (mhla.explain says more)");
}

Plan make_plan(const Tensors& tensors, const Description& description) {
  const Problem problem = parse_problem(problem_text(tensors, description));
  PlanOptions options;
  options.threads = at::get_num_threads();
  if (through_tf32(tensors)) options.implementation = "cuda.tf32";
  Plan made = plan(problem, options);
  warn_if_slow(made);
  return made;
}

}  // namespace

std::string problem_text(const Tensors& t, const Description& d) {
  expect_rank("q", t.q);
  expect_rank("k", t.k);
  expect_rank("v", t.v);
  const std::int64_t nq = t.q.size(1), nk = t.k.size(1);
  const std::string_view words(d.options.data(), d.options.size());
  std::string text;
  const bool says_grid = words.starts_with("grid=") ||
                         words.find(" grid=") != std::string_view::npos;
  if (!d.sizes.empty() || !says_grid) {
    append_sizes(text, d.sizes.empty() ? at::IntArrayRef(nq) : d.sizes, axes_of(d.options, ""), "");
  }
  const bool keys_differ = !d.sizes_k.empty() || words.find("_k=") != std::string_view::npos;
  if (keys_differ) {
    append_sizes(text, d.sizes_k.empty() ? at::IntArrayRef(nk) : d.sizes_k,
                 axes_of(d.options, "_k"), "_k");
  }
  const auto add = [&text](const char* key, const std::string& value) {
    text += std::string(key) + "=" + value + " ";
  };
  add("batch", std::to_string(t.q.size(0)));
  add("heads", std::to_string(t.q.size(2)));
  add("dk", std::to_string(t.q.size(3)));
  add("dv", std::to_string(t.v.size(3)));
  add("dtype", name(dtype_of(t.q.scalar_type())));
  add("device", to_string(device_of(t.q.device())));
  if (t.mixing.dim() == 3) add("mixing_per_head", "true");
  if (t.q_den.defined()) add("separate_denominator", "true");
  text += words;
  return text;
}

Plan plan_of(const Tensors& tensors, const Description& description) {
  expect_rank("q", tensors.q);
  expect_rank("k", tensors.k);
  expect_rank("v", tensors.v);
  const auto numbers = numbers_of(tensors, description);
  // The last plans of a thread are found without a lock and a hash: a model has few shapes.
  struct Entry {
    Key key;
    Plan plan;
  };
  thread_local std::array<std::optional<Entry>, 8> recent;
  thread_local std::size_t oldest = 0;
  for (const auto& entry : recent) {
    if (entry && same(entry->key, description, numbers)) return entry->plan;
  }
  const auto remember = [](Key made_for, const Plan& plan) {
    recent[oldest++ % recent.size()].emplace(Entry{std::move(made_for), plan});
    return plan;
  };

  Key key{std::string(description.options.data(), description.options.size()), {}, numbers};
  key.sizes.assign(description.sizes.begin(), description.sizes.end());
  key.sizes.insert(key.sizes.end(), description.sizes_k.begin(), description.sizes_k.end());

  static std::mutex mutex;
  static std::unordered_map<Key, Plan, KeyHash> plans;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = plans.find(key); found != plans.end()) {
      return remember(std::move(key), found->second);
    }
  }
  Plan made = make_plan(tensors, description);
  const std::lock_guard lock(mutex);
  // A captured CUDA graph may still read the tables of a device's plan, so those stay.
  if (plans.size() >= kMaxPlans) {
    std::erase_if(plans, [](const auto& entry) {
      return entry.second.problem().device.kind == Device::Kind::cpu;
    });
  }
  plans.insert_or_assign(key, made);
  return remember(std::move(key), made);
}

}  // namespace mhla::nn
