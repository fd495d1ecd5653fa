// The compiled implementations as subjects.
#include "mhla/verify/subject.h"

#include "mhla/core/device_memory.h"

namespace mhla::verify {

Subject subject(const std::string& implementation) {
  const bool on_cuda = implementation.starts_with("cuda.");
  return {
      .name = implementation,
      .device = on_cuda ? Device::cuda(0) : Device::cpu(),
      .plan =
          [implementation](const Problem& problem) {
            // One thread: cases are spread over the cores instead.
            return plan(problem, {.implementation = implementation, .threads = 1});
          },
      .forward = [](const Plan& plan, const ForwardInputs& in, const ForwardOutputs& out,
                    const Workspace& workspace) { forward(plan, in, out, workspace); },
      .backward = [](const Plan& plan, const BackwardInputs& in, const BackwardOutputs& out,
                     const Workspace& workspace) { backward(plan, in, out, workspace); },
  };
}

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  const bool has_cuda = !cuda_devices().empty();
  for (const std::string& name : implementations()) {
    Subject s = subject(name);
    if (s.device.kind == Device::Kind::cpu || has_cuda) all.push_back(std::move(s));
  }
  return all;
}

}  // namespace mhla::verify
