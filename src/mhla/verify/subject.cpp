// The compiled implementations as subjects.
#include "mhla/verify/subject.h"

#include "mhla/core/device_memory.h"

namespace mhla::verify {

namespace {
constexpr int kTeam = 3;  // threads that share the work of one case, beside runs with one
}

Subject subject(const std::string& implementation, int threads) {
  const bool on_cuda = implementation.starts_with("cuda.");
  return {
      .name = threads == 1 ? implementation
                           : implementation + ", " + std::to_string(threads) + " threads",
      .device = on_cuda ? Device::cuda(0) : Device::cpu(),
      .plan =
          [implementation, threads](const Problem& problem) {
            return plan(problem, {.implementation = implementation, .threads = threads});
          },
      .forward = [](const Plan& plan, const ForwardInputs& in, const ForwardOutputs& out,
                    const Workspace& workspace) { forward(plan, in, out, workspace); },
      .backward = [](const Plan& plan, const BackwardInputs& in, const BackwardOutputs& out,
                     const Workspace& workspace) { backward(plan, in, out, workspace); },
      .roundoff = implementation == "cuda.tf32" ? 0x1p-11 : 0,
  };
}

std::vector<Subject> subjects(const std::string& implementation) {
  // One thread: cases are spread over the cores instead.
  std::vector<Subject> all = {subject(implementation, 1)};
  if (implementation.starts_with("cpu.")) all.push_back(subject(implementation, kTeam));
  return all;
}

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  const bool has_cuda = !cuda_devices().empty();
  for (const std::string& name : implementations()) {
    for (Subject& s : subjects(name)) {
      if (s.device.kind == Device::Kind::cpu || has_cuda) all.push_back(std::move(s));
    }
  }
  return all;
}

}  // namespace mhla::verify
