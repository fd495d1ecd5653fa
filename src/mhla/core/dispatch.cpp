// The public calls: check, then hand over to the planned implementation.
#include <new>

#include "mhla/core/check.h"
#include "mhla/core/implementation.h"
#include "mhla/mhla.h"

namespace mhla {
namespace {

// Host memory of the alignment a workspace needs.
class HostWorkspace {
 public:
  explicit HostWorkspace(std::size_t bytes)
      : workspace_{bytes ? ::operator new(bytes, std::align_val_t{kWorkspaceAlignment}) : nullptr,
                   bytes} {}
  HostWorkspace(const HostWorkspace&) = delete;
  HostWorkspace& operator=(const HostWorkspace&) = delete;
  ~HostWorkspace() { ::operator delete(workspace_.data, std::align_val_t{kWorkspaceAlignment}); }
  const Workspace& get() const { return workspace_; }

 private:
  Workspace workspace_;
};

void require_cpu(const char* where, const Plan& plan) {
  if (plan.problem().device.kind != Device::Kind::cpu) {
    fail(where, "workspace: required for a problem on ", to_string(plan.problem().device), " (",
         "the call without one allocates host memory)");
  }
}

}  // namespace

void forward(const Plan& plan, const ForwardInputs& inputs, const ForwardOutputs& outputs,
             const Workspace& workspace, Stream stream) {
  check_forward(plan, inputs, outputs, workspace);
  plan.data().implementation->forward(plan.data(), inputs, outputs, workspace, stream);
}

void backward(const Plan& plan, const BackwardInputs& inputs, const BackwardOutputs& outputs,
              const Workspace& workspace, Stream stream) {
  check_backward(plan, inputs, outputs, workspace);
  plan.data().implementation->backward(plan.data(), inputs, outputs, workspace, stream);
}

void forward(const Plan& plan, const ForwardInputs& inputs, const ForwardOutputs& outputs) {
  require_cpu("forward", plan);
  forward(plan, inputs, outputs, HostWorkspace(plan.forward_workspace()).get());
}

void backward(const Plan& plan, const BackwardInputs& inputs, const BackwardOutputs& outputs) {
  require_cpu("backward", plan);
  backward(plan, inputs, outputs, HostWorkspace(plan.backward_workspace()).get());
}

}  // namespace mhla
