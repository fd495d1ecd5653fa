// The processes over a c10d back end.
#include "train/processes.h"

#include <c10/core/Device.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "mhla/core/text.h"
#include "mhla/error.h"
#include "train/distributed/buckets.h"
#include "train/distributed/group.h"
#include "train/launcher.h"

namespace mhla::train {
namespace {

constexpr std::chrono::seconds kPatience{3};

// Whoever kills `mhla train --processes` at once must not leave workers behind that go on writing
// into the run while it is resumed.
void end_with_launcher() {
  const char* text = std::getenv(kLauncher);
  const auto launcher = text ? parse_number<pid_t>(text) : std::nullopt;
  if (!launcher) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != *launcher) fail(ErrorCode::io, "train", "whoever started this worker is gone");
}

class JoinedProcesses : public Processes {
 public:
  JoinedProcesses(const Rendezvous& rendezvous, c10::intrusive_ptr<c10d::Backend> group)
      : share_{.rank = rendezvous.rank, .world = rendezvous.world}, group_(std::move(group)) {}

  data::Share share() const override { return share_; }

  void sum(at::Tensor& tensor) override {
    together([&] {
      std::vector<at::Tensor> tensors = {tensor};
      group_->allreduce(tensors, c10d::AllreduceOptions())->wait();
    });
  }

  void broadcast(at::Tensor& tensor, int from) override {
    together([&] {
      std::vector<at::Tensor> tensors = {tensor};
      c10d::BroadcastOptions options;
      options.rootRank = from;
      group_->broadcast(tensors, options)->wait();
    });
  }

  void wait_for_all() override {
    together([&] { group_->barrier(c10d::BarrierOptions())->wait(); });
  }

  void watch(const std::vector<at::Tensor>& parameters) override {
    buckets_ = std::make_unique<GradientBuckets>(group_, parameters);
  }
  void expect_gradients() override { buckets_->expect(); }
  void average_gradients() override {
    together([&] { buckets_->finish(); });
  }

 private:
  // A call that the others do not make any more ends the job with one message.
  template <typename Call>
  void together(const Call& call) {
    try {
      call();
    } catch (const std::exception& error) {
      // Whoever started us ends us meanwhile and names the process that failed.
      std::this_thread::sleep_for(kPatience);
      const std::string_view text = error.what();
      fail(ErrorCode::io, "train", "process ", share_.rank, " of ", share_.world,
           " lost the others (", text.substr(0, text.find('\n')),
           "): --resume goes on from the last checkpoint");
    }
  }

  data::Share share_;
  c10::intrusive_ptr<c10d::Backend> group_;
  std::unique_ptr<GradientBuckets> buckets_;
};

}  // namespace

std::unique_ptr<Processes> join_processes(c10::Device& device) {
  const Rendezvous rendezvous = Rendezvous::from_environment();
  if (rendezvous.world == 1) return std::make_unique<Processes>();
  end_with_launcher();
  if (device.is_cuda()) {
    device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(rendezvous.local_rank));
  }
  return std::make_unique<JoinedProcesses>(rendezvous, join(rendezvous, device));
}

}  // namespace mhla::train
