// The MHLA attention layer, with every switch in which the paper and its code differ (spec 1.12).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "nn/attention.h"
#include "nn/modules/layers.h"
#include "nn/state.h"

namespace mhla::nn {

enum class Rope { none, after_phi, after_phi_num_only };
enum class QkNorm { none, full, head };  // full: over all heads together
// RMSNorm of each head's output, of all heads together, or after the output projection; the last
// two are those of the authors' older video layers.
enum class OutNorm { none, head, full, after };
enum class Preset { paper, authors };
enum class Task { classification, dit, video, language };

struct MHLAConfig {
  std::int64_t dim = 0;
  std::int64_t heads = 1;
  std::int64_t key_divisor = 1;  // dim_k is dim / key_divisor where it is not given
  std::int64_t dim_k = 0;        // total width of q and of k; 0: dim
  std::int64_t dim_v = 0;        // total width of v; 0: dim
  Layout layout = {};
  std::int64_t tokens = 0;  // the longest sequence, which sizes the mixing matrix; grids know it

  // locality, causal_locality, uniform, causal_uniform, authors:TRANSFORM, or a number
  std::string init = "locality";
  Mask mask = Mask::none;
  Normalizer normalizer = Normalizer::exact;
  FeatureMap feature_map = FeatureMap::relu_eps;
  double scale = 1.0;        // of the scores
  bool scale_by_dk = false;  // by dk^-1/2 instead
  std::optional<double> eps = std::nullopt;
  std::optional<std::pair<double, double>> clamp = std::pair{0.0, 1.0};
  bool clamp_in_forward = false;  // else by constrain() after each update
  bool renormalize_rows = false;
  bool mixing_per_head = false;
  bool freeze_mixing = false;  // the mixing matrix stays as it starts (ablation of Tab. 7a)
  Rope rope = Rope::none;
  std::int64_t lepe = 0;       // size of a depthwise convolution of v on the grid, added to o
  bool lepe_identity = false;  // it starts as the identity
  bool inner_norm = false;     // LayerNorm on the input
  QkNorm qk_norm = QkNorm::none;
  std::optional<double> qk_norm_eps = std::nullopt;
  OutNorm out_norm = OutNorm::none;
  bool gate = false;  // times SiLU of a projection of the input
  bool qkv_bias = true;
  bool out_bias = true;
  std::optional<bool> gate_bias = std::nullopt;  // as qkv_bias
  bool separate_qkv = false;                     // three projections instead of one
  double dropout = 0.0;

  // What the paper, or the authors' code, has around the operator in one of its four tasks.
  static MHLAConfig preset(Preset preset, Task task);
  // `dim=384 heads=6 grid=14x14 blocks=4x4 preset=authors task=dit`, single switches after these
  static MHLAConfig read(std::string_view options);
};

// The parameters of a norm or a convolution, under the names that PyTorch gives them.
class Weights : public torch::nn::Cloneable<Weights> {
 public:
  explicit Weights(const at::Tensor& weight, const at::Tensor& bias = {});
  void reset() override;
  at::Tensor weight, bias;

 private:
  at::Tensor initial_weight_, initial_bias_;
};

class MHLAImpl : public torch::nn::Cloneable<MHLAImpl> {
 public:
  explicit MHLAImpl(const MHLAConfig& config);
  void reset() override;
  at::Tensor forward(const at::Tensor& x);  // [B, N, dim] -> [B, N, dim]
  // The norm that the layer begins with, and the layer without it.
  std::optional<functional::Norm> input_norm() const;
  at::Tensor forward_normed(const at::Tensor& x) { return run_normed(x, nullptr); }
  // Layers with a causal mask and a sequence cut by block size: a state that has read nothing, and
  // x [B, T, dim], one token or several, read after those that the state has. No gradients.
  c10::intrusive_ptr<StreamState> init_state(std::int64_t batch = 1) const;
  at::Tensor step(const at::Tensor& x, StreamState& state);
  // Brings the mixing weights back into the range of the config; to be called after an update.
  void constrain();

  MHLAConfig config;
  Linear qkv;                     // null where separate_qkv
  Linear q_proj, k_proj, v_proj;  // null otherwise
  Linear gate, out;
  torch::nn::Dropout dropout{nullptr};
  at::Tensor mixing;                        // [M, M] or [H, M, M]
  std::shared_ptr<Weights> norm;            // [dim]
  std::shared_ptr<Weights> q_norm, k_norm;  // [dim_k] or [dk]
  std::shared_ptr<Weights> lepe;            // [dim_v, 1, k, k(, k)], [dim_v]
  std::shared_ptr<Weights> out_norm;        // [dv], [dim_v] or [dim]

 private:
  std::vector<at::Tensor> project(const at::Tensor& x) const;
  at::Tensor run(const at::Tensor& x, StreamState* state);
  at::Tensor run_normed(const at::Tensor& x, StreamState* state);
  // q or k, or both of them beside their plain form for the denominator (undefined: the same).
  struct Rows {
    at::Tensor rows, plain;  // [B, N, H, D]
  };
  Rows prepared(const at::Tensor& x, const std::shared_ptr<Weights>& weights,
                StreamState* state) const;
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    StreamState* state) const;
  at::Tensor mixing_in_range() const;
  double score_scale() const;
  bool plain_denominator() const;
};
TORCH_MODULE(MHLA);

}  // namespace mhla::nn
