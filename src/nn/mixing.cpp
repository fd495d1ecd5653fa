#include "nn/mixing.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <charconv>
#include <cmath>
#include <cstring>

#include "mhla/mhla.h"

namespace mhla::nn {
namespace {

// `grid=32x32 block=8x8`: what BlockLayout::to_string writes.
BlockLayout layout_of(c10::string_view text) {
  return parse_problem(std::string_view(text.data(), text.size())).layout;
}

at::Tensor tensor_of(const MixingMatrix& mixing) {
  std::vector<std::int64_t> shape{mixing.rows(), mixing.cols()};
  if (mixing.heads() > 0) shape.insert(shape.begin(), mixing.heads());
  at::Tensor tensor = at::empty(shape, at::kFloat);
  std::memcpy(tensor.data_ptr(), mixing.data().data(), mixing.data().size() * sizeof(float));
  return tensor;
}

at::Tensor initial_mixing_of_text(c10::string_view layout, c10::string_view how) {
  return initial_mixing(std::string(how), layout_of(layout));
}

// The block of every token, which is its row of the mixing matrix: [N].
at::Tensor block_index(c10::string_view layout_text) {
  const BlockLayout layout = layout_of(layout_text);
  at::Tensor index = at::empty({layout.tokens()}, at::kLong);
  auto* blocks = index.mutable_data_ptr<std::int64_t>();
  for (const Block& block : layout.blocks()) {
    for (std::int64_t p = 0; p < block.tokens(); ++p) blocks[block.token(p)] = block.index;
  }
  return index;
}

at::Tensor resample_mixing(const at::Tensor& mixing, c10::string_view from, c10::string_view to,
                           bool causal, bool keep_row_sums) {
  const MixingMatrix result = matrix_of(mixing).resample(
      layout_of(from), layout_of(to), {.causal = causal, .keep_row_sums = keep_row_sums});
  return tensor_of(result).to(mixing.options());
}

void constrain_mixing_operator(at::Tensor& mixing, double low, double high, bool renormalize) {
  constrain_mixing_(mixing, low, high, renormalize);
}

}  // namespace

MixingMatrix matrix_of(const at::Tensor& tensor) {
  if (tensor.dim() != 2 && tensor.dim() != 3) {
    fail("mixing", "expected [Mq, Mk] or [H, Mq, Mk], got ", tensor.dim(), " axes");
  }
  const at::Tensor weights = tensor.detach().to(at::kCPU, at::kFloat).contiguous();
  const bool per_head = weights.dim() == 3;
  return MixingMatrix::from(weights.const_data_ptr<float>(), per_head ? weights.size(0) : 0,
                            weights.size(per_head ? 1 : 0), weights.size(per_head ? 2 : 1));
}

at::Tensor initial_mixing(const std::string& how, const BlockLayout& layout) {
  if (how == "locality") return tensor_of(MixingMatrix::locality(layout));
  if (how == "causal_locality") {
    const at::Tensor lower = tensor_of(MixingMatrix::locality(layout)).tril();
    return lower.div(lower.sum(-1, /*keepdim=*/true));
  }
  if (how == "uniform") return tensor_of(MixingMatrix::uniform(layout));
  if (how == "causal_uniform") return tensor_of(MixingMatrix::causal_uniform(layout));
  const std::string_view authors = "authors:";
  if (how.starts_with(authors)) {
    const Transform transform = parse_transform(how.substr(authors.size()));
    return tensor_of(MixingMatrix::authors(layout, transform));
  }
  double value = 0;
  const auto [end, error] = std::from_chars(how.data(), how.data() + how.size(), value);
  if (error != std::errc() || end != how.data() + how.size() || !std::isfinite(value)) {
    fail("initial_mixing", "how: expected locality, causal_locality, uniform, causal_uniform, ",
         "authors:TRANSFORM or a number, got '", how, "'");
  }
  return at::full({layout.mixing_size(), layout.mixing_size()}, value, at::kFloat);
}

void constrain_mixing_(at::Tensor mixing, double low, double high, bool renormalize_rows) {
  const at::NoGradGuard no_gradient;
  mixing.clamp_(low, high);
  if (!renormalize_rows) return;
  const at::Tensor sums = mixing.sum(-1, /*keepdim=*/true);
  const double uniform = 1.0 / static_cast<double>(mixing.size(-1));
  mixing.copy_(at::where(sums.eq(0), at::full_like(mixing, uniform), mixing.div(sums)));
}

}  // namespace mhla::nn

TORCH_LIBRARY_IMPL(mhla, CompositeExplicitAutograd, m) {
  m.impl("version", [] { return std::string(mhla::version()); });
  m.impl("block_index", TORCH_FN(mhla::nn::block_index));
  m.impl("initial_mixing", TORCH_FN(mhla::nn::initial_mixing_of_text));
  m.impl("resample_mixing", TORCH_FN(mhla::nn::resample_mixing));
  m.impl("constrain_mixing_", TORCH_FN(mhla::nn::constrain_mixing_operator));
}
