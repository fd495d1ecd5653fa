// The smallest use: attention over a picture's tokens.
#include <mhla/mhla.h>

#include <cmath>
#include <iostream>
#include <vector>

int main() {
  const auto layout = mhla::BlockLayout::grid({32, 32}, {.block = {8, 8}});  // 16 blocks of 64
  const auto mixing = mhla::MixingMatrix::locality(layout);                  // the paper's start
  const mhla::Plan plan = mhla::plan({.heads = 6, .dk = 8, .dv = 8, .layout = layout});
  std::vector<float> x(1024 * 6 * 8), y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  const auto qkv = mhla::TensorView::of(x.data(), {1, 1024, 6, 8});  // [B, N, H, D]
  const auto o = mhla::TensorView::of(y.data(), {1, 1024, 6, 8});
  mhla::forward(plan, {.q = qkv, .k = qkv, .v = qkv, .mixing = mixing.view()}, {.o = o});
  std::cout << plan.explain() << "first output " << y[0] << '\n';

  // Every output is a mean of values, weighted by non-negative scores.
  for (const float value : y) {
    if (!(std::abs(value) <= 1.0F)) return 1;
  }
}
