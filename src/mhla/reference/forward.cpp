// Reference forward pass: Eq. 3 to 5 of the paper, token by token.
#include <algorithm>
#include <array>

#include "mhla/reference/head.h"
#include "mhla/reference/reference.h"

namespace mhla::reference {
namespace {

// The value of the convolution that LocalTerm means, at one token of a grid and one channel.
template <typename T>
double local_value(const LocalTerm& local, const std::array<std::int64_t, 3>& grid,
                   const Rows<T>& v, std::int64_t token, std::int64_t d, std::int64_t channel) {
  const auto at = [channel](const TensorView& x, std::int64_t width, std::int64_t i) {
    return static_cast<double>(to_float(static_cast<const T*>(x.data)[channel * width + i]));
  };
  const std::int64_t place[3] = {token / (grid[1] * grid[2]), token / grid[2] % grid[1],
                                 token % grid[2]};
  const auto& kernel = local.kernel;
  const std::int64_t taps = kernel[0] * kernel[1] * kernel[2];
  double sum = local.bias.defined() ? at(local.bias, 1, 0) : 0.0;
  for (std::int64_t tap = 0; tap < taps; ++tap) {
    const std::int64_t step[3] = {tap / (kernel[1] * kernel[2]), tap / kernel[2] % kernel[1],
                                  tap % kernel[2]};
    std::int64_t from = 0;
    bool inside = true;
    for (int axis = 0; axis < 3; ++axis) {
      const std::int64_t x = place[axis] + step[axis] - kernel[axis] / 2;
      inside = inside && x >= 0 && x < grid[axis];
      from = from * grid[axis] + x;
    }
    if (inside) sum += at(local.weight, taps, tap) * v.get(from, d);
  }
  return sum;
}

}  // namespace

template <typename T>
void forward(const Problem& problem, const ForwardInputs& in, const ForwardOutputs& out,
             const Workspace& workspace) {
  Arena arena(workspace);
  Scratch scratch(problem, arena);
  std::array<std::int64_t, 3> grid{1, 1, 1};
  if (in.local.weight.defined()) {
    const auto& axes = problem.layout.sequences().front().grid;
    std::copy_backward(axes.begin(), axes.end(), grid.end());
  }
  for_each_head<T>(problem, in, scratch, [&](const Head<T>& head, auto batch, auto h) {
    const Rows<T> o(out.o, batch, h);
    head.summarize();
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(head.query_blocks.size()); ++i) {
      const Block& block = head.query_blocks[i];
      head.mix(i);
      for (std::int64_t w = 0; w < block.tokens(); ++w) {
        const std::int64_t token = block.token(w);
        if (head.causal()) head.join(i, token);
        head.load_query(token);
        head.read_out();
        double factor = 1;
        if (problem.normalizer != Normalizer::none) {
          const double denominator = head.denominator(i, w);
          factor = denominator == 0 ? 0.0 : 1.0 / denominator;
        }
        for (std::int64_t d = 0; d < problem.dv; ++d) {
          double value = factor * scratch.numerator[d];
          if (in.local.weight.defined()) {
            value += local_value(in.local, grid, head.v, token, d, h * problem.dv + d);
          }
          o.set(token, d, value);
        }
      }
    }
  });
}

std::size_t forward_workspace(const Problem& problem) { return Scratch::size(problem); }

template void forward<float>(const Problem&, const ForwardInputs&, const ForwardOutputs&,
                             const Workspace&);
template void forward<double>(const Problem&, const ForwardInputs&, const ForwardOutputs&,
                              const Workspace&);
template void forward<BFloat16>(const Problem&, const ForwardInputs&, const ForwardOutputs&,
                                const Workspace&);
template void forward<Float16>(const Problem&, const ForwardInputs&, const ForwardOutputs&,
                               const Workspace&);

}  // namespace mhla::reference
