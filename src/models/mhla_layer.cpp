#include "models/mhla_layer.h"

#include <ATen/ops/empty.h>

#include <cstring>

#include "mhla/core/text.h"
#include "nn/mixing.h"

namespace mhla::models {
namespace {

using at::Tensor;
using torch::nn::Module;

// The module that `a.b.name` hangs below, made where it is missing, and the last word.
std::pair<Module*, std::string> descend(Module& root, const std::string& path) {
  Module* at = &root;
  const auto words = split(path, '.');
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string word(words[i]);
    auto children = at->named_children();
    auto* found = children.find(word);
    at = found ? found->get() : at->register_module(word, std::make_shared<Module>()).get();
  }
  return {at, std::string(words.back())};
}

void hang(Module& root, const char* path, const std::shared_ptr<Module>& part) {
  if (!part) return;
  const auto [parent, name] = descend(root, path);
  parent->register_module(name, part);
}

Tensor tensor_of(const MixingMatrix& mixing) {
  std::vector<std::int64_t> shape{mixing.rows(), mixing.cols()};
  if (mixing.heads() > 0) shape.insert(shape.begin(), mixing.heads());
  Tensor tensor = at::empty(shape, at::kFloat);
  std::memcpy(tensor.data_ptr(), mixing.data().data(), mixing.data().size() * sizeof(float));
  return tensor;
}

// Without the sizes of 1 at the end: [M, M] or [H, M, M].
Tensor as_matrix(const Tensor& mixing, bool per_head) {
  return mixing.view(mixing.sizes().slice(0, per_head ? 3 : 2));
}

}  // namespace

const MhlaNames& MhlaNames::of(Task task) {
  static const MhlaNames pictures{.qkv = "to_qkv",
                                  .q = nullptr,
                                  .k = nullptr,
                                  .v = nullptr,
                                  .q_norm = "q_norm",
                                  .k_norm = "k_norm",
                                  .mixing = "piece_attn.conv.weight",
                                  .axes = 4,
                                  .gate = "to_gate",
                                  .out_norm = "out_norm",
                                  .out = "to_out.0"};
  static const MhlaNames sana = [] {
    MhlaNames names = pictures;
    names.qkv = "qkv";
    names.out = "proj";
    return names;
  }();
  static const MhlaNames wan{.qkv = nullptr,
                             .q = "q",
                             .k = "k",
                             .v = "v",
                             .q_norm = "norm_q",
                             .k_norm = "norm_k",
                             .mixing = "block_attn.conv.weight",
                             .axes = 4,
                             .gate = "g",
                             .out_norm = "g_norm",
                             .out = "o"};
  static const MhlaNames language{.qkv = nullptr,
                                  .q = "q_proj",
                                  .k = "k_proj",
                                  .v = "v_proj",
                                  .q_norm = "q_norm",
                                  .k_norm = "k_norm",
                                  .mixing = "mixing_matrix",
                                  .axes = 6,
                                  .gate = "g_proj",
                                  .out_norm = "g_norm_swish_gate",
                                  .out = "o_proj"};
  switch (task) {
    case Task::text_to_image: return sana;
    case Task::video: return wan;
    case Task::language: return language;
    default: return pictures;
  }
}

MhlaLayer::MhlaLayer(nn::MHLAConfig config, const MhlaNames& names)
    : layer_(config), made_for_(layer_->config.layout) {
  hang(*this, "norm", layer_->norm);
  if (names.q) {
    hang(*this, names.q, layer_->q_proj);
    hang(*this, names.k, layer_->k_proj);
    hang(*this, names.v, layer_->v_proj);
  } else {
    hang(*this, names.qkv, layer_->qkv);
  }
  hang(*this, names.q_norm, layer_->q_norm);
  hang(*this, names.k_norm, layer_->k_norm);
  hang(*this, "lepe", layer_->lepe);
  hang(*this, names.gate, layer_->gate);
  const bool after = config.out_norm == nn::OutNorm::after;
  hang(*this, after ? "out_rmsnorm" : names.out_norm, layer_->out_norm);
  hang(*this, names.out, layer_->out);
  hang(*this, "dropout", layer_->dropout.ptr());
  Tensor start = layer_->mixing.detach();
  std::vector<std::int64_t> shape = start.sizes().vec();
  shape.insert(shape.end(), static_cast<std::size_t>(names.axes) - 2, 1);
  const auto [parent, name] = descend(*this, names.mixing);
  mixing_ = parent->register_parameter(name, start.reshape(shape).clone(),
                                       /*requires_grad=*/!config.freeze_mixing);
}

BlockLayout MhlaLayer::layout() const { return made_for_.of(config().tokens); }

void MhlaLayer::set_grid(const std::vector<std::int64_t>& grid) {
  if (!made_for_.is_grid()) return;
  layer_->config.layout.grid = grid;
  layer_->config.layout.cut.blocks = blocks_within(made_for_.cut.blocks, grid);
}

// Where the tokens need more blocks, or others, than the matrix was made for, it is interpolated.
Tensor MhlaLayer::matrix_for(std::int64_t tokens) {
  const Tensor matrix = as_matrix(mixing_, config().mixing_per_head);
  const std::int64_t blocks = matrix.size(-1);
  const BlockLayout wanted = config().layout.of(tokens);
  const bool enough = config().layout.is_grid() ? wanted.mixing_size() == blocks
                                                : wanted.mixing_size() <= blocks;
  return enough ? matrix : interpolated(matrix, wanted);
}

Tensor MhlaLayer::forward(const Tensor& x) {
  layer_->mixing = matrix_for(x.size(1));
  return layer_->forward(x);
}

Tensor MhlaLayer::forward_normed(const Tensor& x) {
  layer_->mixing = matrix_for(x.size(1));
  return layer_->forward_normed(x);
}

Tensor MhlaLayer::read(const Tensor& x, c10::intrusive_ptr<nn::StreamState>& stream) {
  if (!stream) {
    layer_->mixing = as_matrix(mixing_, config().mixing_per_head);
    stream = layer_->init_state(x.size(0));
  }
  return layer_->step(x, *stream);
}

void MhlaLayer::constrain() {
  const auto& c = config();
  if (!c.clamp || c.clamp_in_forward || c.freeze_mixing) return;
  nn::constrain_mixing_(as_matrix(mixing_.detach(), c.mixing_per_head), c.clamp->first,
                        c.clamp->second, c.renormalize_rows);
}

Tensor Mixed::interpolated(const Tensor& matrix, const BlockLayout& wanted) {
  if (at::GradMode::is_enabled() && matrix.requires_grad()) {
    fail("models", "mhla: ", wanted.to_string(), " needs a mixing matrix of ", wanted.mixing_size(),
         " blocks, this one has ", matrix.size(-1),
         ": only evaluation interpolates it; training needs a model made for that size");
  }
  return tensor_of(nn::matrix_of(matrix).resample(layout(), wanted, {.causal = causal()}))
      .to(matrix.options());
}

Tensor Mixed::resampled(const Tensor& stored, const BlockLayout& from) {
  Tensor matrix = stored;
  while (matrix.dim() > 2 && matrix.size(-1) == 1) matrix = matrix.squeeze(-1);
  const MixingMatrix moved = nn::matrix_of(matrix).resample(from, layout(), {.causal = causal()});
  return tensor_of(moved).reshape(mixing().sizes());
}

}  // namespace mhla::models
