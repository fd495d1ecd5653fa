// Reference forward pass: Eq. 3 to 5 of the paper, token by token.
#include "mhla/reference/head.h"
#include "mhla/reference/reference.h"

namespace mhla::reference {

template <typename T>
void forward(const Problem& problem, const ForwardInputs& in, const ForwardOutputs& out,
             const Workspace& workspace) {
  Arena arena(workspace);
  Scratch scratch(problem, arena);
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
          o.set(token, d, factor * scratch.numerator[d]);
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
