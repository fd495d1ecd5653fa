// The networks that `mhla bench models` times, on LibTorch.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <torch/cuda.h>
#include <torch/version.h>

#include "cli/bench_models.h"
#include "mhla/error.h"
#include "models/model.h"

namespace {

using mhla::cli::NetworkCall;
using mhla::cli::NetworkRow;
using mhla::models::Model;

// bf16 has 8 bits, and a network adds up many roundings; a wrong kernel is off by far more.
constexpr double kMostError = 0.1;

// Back ends of scaled_dot_product_attention, one at a time.
void allow_only(const std::string& back_end) {
  at::Context& context = at::globalContext();
  context.setSDPUseCuDNN(back_end != "flash");
  context.setSDPUseFlash(back_end != "cudnn");
}

class TorchNetworks : public mhla::cli::Networks {
 public:
  TorchNetworks() : device_(torch::cuda::is_available() ? "cuda:0" : "cpu") {}
  std::string version() const override { return std::string("LibTorch ") + TORCH_VERSION; }
  std::string device() const override { return device_.str(); }
  std::string dtype() const override { return device_.is_cuda() ? "bf16" : "f32"; }
  std::vector<NetworkCall> prepare(const NetworkRow& row, const std::string& attention) override;

 private:
  std::vector<at::Tensor> inputs_of(const Model& model, const NetworkRow& row) const;
  void check(Model& model, const std::vector<at::Tensor>& inputs, const std::string& what) const;
  at::ScalarType type() const { return device_.is_cuda() ? at::kBFloat16 : at::kFloat; }

  c10::Device device_;
};

std::vector<at::Tensor> TorchNetworks::inputs_of(const Model& model, const NetworkRow& row) const {
  std::vector<at::Tensor> inputs = model.example_inputs(row.batch);
  for (at::Tensor& input : inputs) {
    input = input.to(device_, input.is_floating_point() ? type() : input.scalar_type());
  }
  return inputs;
}

// On one sample in f32, beside the same weights in the type that is timed.
void TorchNetworks::check(Model& model, const std::vector<at::Tensor>& inputs,
                          const std::string& what) const {
  std::vector<at::Tensor> one, one_f32;
  for (const at::Tensor& input : inputs) {
    one.push_back(input.narrow(0, 0, 1));
    one_f32.push_back(input.is_floating_point() ? one.back().to(at::kFloat) : one.back());
  }
  const at::Tensor timed = model.forward(one).to(at::kFloat);
  model.to(at::kFloat);
  const at::Tensor exact = model.forward(one_f32);
  model.to(type());
  const double error = ((timed - exact).norm() / exact.norm()).item<double>();
  if (!(error < kMostError)) {
    mhla::fail("bench", what, ": the result in ", dtype(), " is off by ", error,
               " of its norm from f32");
  }
}

std::vector<NetworkCall> TorchNetworks::prepare(const NetworkRow& row,
                                                const std::string& attention) {
  const c10::InferenceMode guard;
  at::manual_seed(1);
  const std::shared_ptr<Model> model = mhla::models::create_model(
      row.model,
      row.options + (attention == "paper" ? " attention=mhla attention.preset=paper"
                                          : " attention=" + attention),
      {.device = device_});
  model->eval();
  // Layers that start at zero would hide everything before them.
  for (at::Tensor& parameter : model->parameters()) {
    if (parameter.eq(0).all().item<bool>()) parameter.normal_(0, 0.02);
  }
  model->to(type());
  const auto inputs = std::make_shared<std::vector<at::Tensor>>(inputs_of(*model, row));
  std::vector<std::string> ways = {""};
  if (attention == "softmax" && device_.is_cuda()) ways = {"cudnn", "flash"};
  std::vector<NetworkCall> calls;
  for (const std::string& way : ways) {
    const bool on_gpu = device_.is_cuda();
    const auto forward = [model, inputs, way, on_gpu] {
      const c10::InferenceMode inference;
      if (!way.empty()) allow_only(way);
      model->forward(*inputs);
      if (on_gpu) torch::cuda::synchronize();
    };
    calls.push_back({.attention = attention, .way = way, .forward = forward});
  }
  if (ways.size() == 1) check(*model, *inputs, row.name + " with " + attention);
  // cuDNN compiles for a new shape, which may take seconds and is no part of a forward.
  for (const NetworkCall& call : calls) call.forward();
  return calls;
}

}  // namespace

mhla::cli::Networks* mhla_bench_make_networks() { return new TorchNetworks; }
