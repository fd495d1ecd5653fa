// The smallest whole use of the library: mix a picture's tokens and print what was done.
#include <mhla/mhla.h>

#include <cmath>
#include <iostream>
#include <vector>

int main() {
  const auto layout = mhla::BlockLayout::grid({14, 14}, {.block = {4, 4}});  // ragged at the edge
  const auto mixing = mhla::MixingMatrix::locality(layout);
  const mhla::Problem problem{.heads = 2, .dk = 16, .dv = 16, .layout = layout};
  const mhla::Plan plan = mhla::plan(problem);
  std::cout << plan.explain();

  std::vector<float> q(196 * 2 * 16), o(q.size());
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = std::sin(0.1f * static_cast<float>(i));
  const auto view = [](std::vector<float>& data) {
    return mhla::TensorView::of(data.data(), {1, 196, 2, 16});
  };
  const std::vector<float> ones(q.size(), 1.0f);
  const auto v = mhla::TensorView::of(ones.data(), {1, 196, 2, 16});
  mhla::forward(plan, {.q = view(q), .k = view(q), .v = v, .mixing = mixing.view()},
                {.o = view(o)});

  // The exact normaliser makes every row of the attention sum to one, so ones stay ones.
  for (const float x : o) {
    if (!(std::fabs(x - 1.0f) < 1e-4f)) {
      std::cerr << "expected 1, got " << x << '\n';
      return 1;
    }
  }
  std::cout << "mhla " << mhla::version() << ": " << o.size() << " values as expected\n";
}
