// Reading a prompt in pieces, writing token by token, going back and branching.
#include <mhla/mhla.h>

#include <cmath>
#include <iostream>
#include <vector>

int main() try {
  const std::int64_t n = 100, h = 2, d = 8, block = 16;
  const mhla::Problem problem{.heads = h,
                              .dk = d,
                              .dv = d,
                              .layout = mhla::BlockLayout::sequence(n, {.block = {block}}),
                              .mask = mhla::Mask::causal};
  // Weights by block offset have no last row, so the stream has no longest length.
  const auto mixing = mhla::ToeplitzMixing::causal({1.0F, 0.5F, 0.25F}, /*normalize_rows=*/true);

  std::vector<float> q(n * h * d), k(q.size()), v(q.size()), streamed(q.size()), whole(q.size());
  for (std::size_t i = 0; i < q.size(); ++i) {
    q[i] = std::sin(0.3F * static_cast<float>(i));
    k[i] = std::cos(0.2F * static_cast<float>(i));
    v[i] = std::sin(0.05F * static_cast<float>(i));
  }
  const auto part = [&](std::vector<float>& x, std::int64_t first, std::int64_t tokens) {
    return mhla::TensorView::of(x.data() + first * h * d, {1, tokens, h, d});
  };
  const auto read = [&](mhla::State& state, std::int64_t tokens) {
    const std::int64_t t = state.tokens();
    state.prefill(part(q, t, tokens), part(k, t, tokens), part(v, t, tokens),
                  part(streamed, t, tokens));
  };

  mhla::State state(problem, mixing);
  read(state, 40);  // the prompt, in two pieces
  read(state, 30);
  mhla::State branch = state.fork();  // shares the closed blocks
  state.rewind(64);                   // to a block edge
  read(branch, 5);                    // goes its own way
  for (std::int64_t t = state.tokens(); t < n; ++t) {
    state.step(part(q, t, 1), part(k, t, 1), part(v, t, 1), part(streamed, t, 1));
  }

  const auto matrix = mixing.matrix(problem.layout);
  mhla::forward(
      mhla::plan(problem),
      {.q = part(q, 0, n), .k = part(k, 0, n), .v = part(v, 0, n), .mixing = matrix.view()},
      {.o = part(whole, 0, n)});
  float worst = 0;
  for (std::size_t i = 0; i < q.size(); ++i)
    worst = std::max(worst, std::abs(streamed[i] - whole[i]));
  std::cout << state.tokens() << " tokens in " << state.bytes()
            << " bytes; largest difference to one call " << worst << "\n";
  return worst < 1e-5F ? 0 : 1;
} catch (const mhla::Error& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
