#include "tasks/task.h"

#include <map>

#include "mhla/core/text.h"
#include "mhla/error.h"

namespace mhla::tasks {
namespace {

std::map<std::string, TaskFactory>& registry() {
  static std::map<std::string, TaskFactory> entries;
  return entries;
}

}  // namespace

TaskName::TaskName(const char* name, TaskFactory factory) { registry()[name] = std::move(factory); }

std::unique_ptr<Task> make_task(io::Config& config) {
  std::string name = "classify", list;
  config.read("task.name", name);
  if (const auto found = registry().find(name); found != registry().end()) {
    return found->second(config);
  }
  std::vector<std::string> known;
  for (const auto& [each, factory] : registry()) {
    known.push_back(each);
    list += (list.empty() ? "" : ", ") + each;
  }
  const std::string near = nearest(name, known);
  fail("tasks", "task.name: unknown task '", name, "'",
       near.empty() ? "" : "; did you mean '" + near + "'?", " (known: ", list, ")",
       config.origin("task.name"));
}

data::Batch to_device(const data::Batch& batch, c10::Device device) {
  data::Batch result{.tensors = {}, .samples = batch.samples};
  for (const auto& [name, tensor] : batch.tensors) {
    result.tensors.emplace(name, tensor.to(device, /*non_blocking=*/true));
  }
  return result;
}

}  // namespace mhla::tasks
