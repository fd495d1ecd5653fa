// Trains an MHLA layer from C++ to average each picture's tokens: 60 steps of Adam.
#include <torch/optim/adam.h>
#include <torch/torch.h>

#include <iostream>

#include "nn/modules/mhla.h"

int main() {
  torch::manual_seed(0);
  auto config = mhla::nn::MHLAConfig::preset(mhla::nn::Preset::paper,
                                             mhla::nn::Task::classification);
  config.dim = 32;
  config.heads = 2;
  config.layout = {.grid = {8, 8}, .cut = {.block = {4, 4}}};  // 64 tokens in 4 blocks
  mhla::nn::MHLA layer(config);
  torch::optim::Adam optimizer(layer->parameters(), 3e-3);

  const auto x = torch::randn({16, 64, 32});  // [B, N, dim], raster order
  const auto target = x.mean(1, /*keepdim=*/true).expand_as(x);
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    const auto loss = torch::mse_loss(layer->forward(x), target);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    layer->constrain();  // mixing weights stay in [0, 1]
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  std::cout << "loss " << first << " -> " << last << '\n' << layer->mixing << '\n';
  return last < 0.5 * first ? 0 : 1;
}
