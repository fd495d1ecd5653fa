// Two Gloo processes: this program starts itself again as a worker.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "cli/launch.h"
#include "mhla/error.h"
#include "nn/modules/batch_norm.h"
#include "train/processes.h"

namespace mhla::train {
namespace {

std::vector<std::string> worker(const std::string& name) {
  return {"test_train", "--gtest_also_run_disabled_tests", "--gtest_filter=Worker.DISABLED_" + name,
          "--gtest_brief=1"};
}

bool started_as_worker() { return std::getenv("WORLD_SIZE") != nullptr; }

// What each of two processes does.
TEST(Worker, DISABLED_Collectives) {
  ASSERT_TRUE(started_as_worker());
  c10::Device device = c10::kCPU;
  const auto processes = join_processes(device);
  const int rank = processes->share().rank;
  ASSERT_EQ(processes->share().world, 2);

  at::Tensor sum = at::full({3}, rank + 1.0);
  processes->sum(sum);
  EXPECT_TRUE(sum.equal(at::full({3}, 3.0)));
  at::Tensor from_last = at::full({2}, 10.0 * rank);
  processes->broadcast(from_last, 1);
  EXPECT_TRUE(from_last.equal(at::full({2}, 10.0)));
  processes->wait_for_all();
}

TEST(Worker, DISABLED_Gradients) {
  ASSERT_TRUE(started_as_worker());
  c10::Device device = c10::kCPU;
  const auto processes = join_processes(device);
  const int rank = processes->share().rank;

  // Large and small, several buckets, one without a gradient, two types.
  std::vector<at::Tensor> parameters;
  for (const std::int64_t size : {7, 400000, 1, 300000, 5}) parameters.push_back(at::ones({size}));
  parameters.push_back(at::ones({4}, at::kDouble));
  for (const at::Tensor& parameter : parameters) parameter.requires_grad_();
  processes->watch(parameters);
  const auto loss = [&](double factor) {
    at::Tensor total = (parameters[5] * factor).sum();
    for (const std::size_t i : {0, 1, 3, 4}) {
      total = total + (parameters[i] * (factor * static_cast<double>(i + 1))).sum();
    }
    return total;
  };
  for (int step = 0; step < 3; ++step) {
    loss(rank).backward();  // the first part stays here
    processes->expect_gradients();
    loss(rank + 1).backward();
    processes->average_gradients();
    for (const std::size_t i : {0, 1, 3, 4}) {  // mean of 0 + 1 and 1 + 2, times i + 1
      const at::Tensor wanted = at::full_like(parameters[i], 2.0 * static_cast<double>(i + 1));
      EXPECT_TRUE(parameters[i].grad().equal(wanted)) << "parameter " << i << " step " << step;
      parameters[i].mutable_grad().zero_();
    }
    EXPECT_TRUE(parameters[5].grad().equal(at::full({4}, 2.0, at::kDouble)));
    parameters[5].mutable_grad().zero_();
    EXPECT_FALSE(parameters[2].grad().defined());
  }
}

TEST(Worker, DISABLED_BatchNorm) {
  ASSERT_TRUE(started_as_worker());
  c10::Device device = c10::kCPU;
  const auto processes = join_processes(device);
  const bool last = processes->share().rank == 1;
  at::manual_seed(5);
  const at::Tensor pictures = at::randn({5, 3, 4, 6}) * 2 + 1, slope = at::randn({5, 3, 4, 6});

  const auto whole = std::make_shared<torch::nn::BatchNorm2dImpl>(torch::nn::BatchNormOptions(3));
  const at::Tensor all = pictures.clone().requires_grad_();
  const at::Tensor wanted = whole->forward(all);
  (wanted * slope).sum().backward();

  // Two pictures here, three there.
  const auto shared = std::make_shared<nn::BatchNorm>(3);
  nn::share_batch_norms(*shared, [&](at::Tensor& tensor) { processes->sum(tensor); });
  const auto part = [&](const at::Tensor& tensor) {
    return last ? tensor.narrow(0, 2, 3) : tensor.narrow(0, 0, 2);
  };
  const at::Tensor own = part(pictures).clone().requires_grad_();
  const at::Tensor result = shared->forward(own);
  (result * part(slope)).sum().backward();
  at::Tensor weight_gradient = shared->weight.grad().clone();
  processes->sum(weight_gradient);

  EXPECT_TRUE(result.allclose(part(wanted), 1e-5, 1e-5));
  EXPECT_TRUE(own.grad().allclose(part(all.grad()), 1e-4, 1e-5));
  EXPECT_TRUE(weight_gradient.allclose(whole->weight.grad(), 1e-4, 1e-4));
  EXPECT_TRUE(shared->running_mean.allclose(whole->running_mean, 1e-5, 1e-6));
  EXPECT_TRUE(shared->running_var.allclose(whole->running_var, 1e-5, 1e-6));
}

TEST(Worker, DISABLED_LosesItsPartner) {
  c10::Device device = c10::kCPU;
  const auto processes = join_processes(device);
  if (processes->share().rank == 1) std::_Exit(7);
  at::Tensor sum = at::ones({1});
  processes->sum(sum);
  FAIL() << "the other process is gone";
}

TEST(Distributed, TwoProcessesSumAndBroadcast) { cli::launch(worker("Collectives"), 2); }

TEST(Distributed, GradientsAreTheMeanOverProcesses) { cli::launch(worker("Gradients"), 2); }

TEST(Distributed, BatchNormTakesTheStatisticsOfAllProcesses) {
  cli::launch(worker("BatchNorm"), 2);
}

TEST(Distributed, ALostWorkerEndsTheJobWithOneMessage) {
  try {
    cli::launch(worker("LosesItsPartner"), 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("process 1 of 2 ended with status 7"),
              std::string::npos)
        << error.what();
  }
}

TEST(Distributed, AnEnvironmentThatContradictsItselfIsAnError) {
  c10::Device device = c10::kCPU;
  setenv("WORLD_SIZE", "2", 1);
  EXPECT_THROW(join_processes(device), Error);  // no RANK
  setenv("RANK", "2", 1);
  EXPECT_THROW(join_processes(device), Error);  // beyond the world
  setenv("WORLD_SIZE", "many", 1);
  EXPECT_THROW(join_processes(device), Error);
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  EXPECT_TRUE(join_processes(device)->alone());
}

}  // namespace
}  // namespace mhla::train
