// One training step by hand: forward, backward, and the constraint on the mixing matrix.
#include <mhla/mhla.h>

#include <cmath>
#include <iostream>
#include <vector>

int main() try {
  const auto layout = mhla::BlockLayout::grid({16, 16}, {.block = {4, 4}});  // 16 blocks of 16
  auto mixing = mhla::MixingMatrix::locality(layout);
  const mhla::Plan plan = mhla::plan({.heads = 2, .dk = 8, .dv = 8, .layout = layout});
  std::cout << plan.explain();

  // A fused projection [B, N, 3, H, D]: q, k and v are slices of it, nothing is copied.
  const std::int64_t n = 256, h = 2, d = 8, row = 3 * h * d;
  std::vector<float> qkv(n * row), d_qkv(n * row), o(n * h * d), d_o(n * h * d, 1.0F);
  for (std::size_t i = 0; i < qkv.size(); ++i) qkv[i] = std::sin(0.1F * static_cast<float>(i));
  const auto slice = [&](std::vector<float>& fused, int which) {
    return mhla::TensorView::strided(fused.data() + which * h * d, {1, n, h, d},
                                     {n * row, row, d, 1});
  };
  const auto q = slice(qkv, 0), k = slice(qkv, 1), v = slice(qkv, 2);
  const auto out = mhla::TensorView::of(o.data(), {1, n, h, d});
  const auto d_out = mhla::TensorView::of(d_o.data(), {1, n, h, d});
  std::vector<float> d_mixing(mixing.data().size());

  mhla::forward(plan, {.q = q, .k = k, .v = v, .mixing = mixing.view()}, {.o = out});
  mhla::backward(plan, {.q = q, .k = k, .v = v, .mixing = mixing.view(), .o = out, .d_o = d_out},
                 {.d_q = slice(d_qkv, 0),
                  .d_k = slice(d_qkv, 1),
                  .d_v = slice(d_qkv, 2),
                  .d_mixing = mhla::TensorView::of(d_mixing.data(), {16, 16})});
  for (std::int64_t i = 0; i < 256; ++i) mixing.at(i / 16, i % 16) -= 0.01F * d_mixing[i];
  mixing.constrain({.low = 0, .high = 1});

  // Rows of the attention sum to one, so the gradients of v for d_o = 1 sum to the number of rows.
  double sum = 0;
  for (std::size_t i = 0; i < d_qkv.size(); ++i) sum += i % row >= 2 * h * d ? d_qkv[i] : 0.0F;
  std::cout << "sum of d_v " << sum << ", expected " << n * h * d << "\n";
  return std::abs(sum - static_cast<double>(n * h * d)) < 1 ? 0 : 1;
} catch (const mhla::Error& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
