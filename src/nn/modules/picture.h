// Linear attention for pictures in DeiT's place: focused (FLatten) and InLine.
#pragma once

#include "nn/modules/attention.h"
#include "nn/modules/layers.h"

namespace mhla::nn {

struct FocusedConfig {
  std::int64_t dim = 0, heads = 0;
  std::vector<std::int64_t> grid;  // height, width
  std::int64_t kernel = 5;         // of the depthwise convolution of v, shared by the heads
  double power = 3.0;
  bool qkv_bias = true;

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("dim", dim);
    visit("heads", heads);
    visit("grid", grid);
    visit("kernel", kernel);
    visit("power", power);
    visit("qkv_bias", qkv_bias);
  }
};

class FocusedAttention : public Attention {
 public:
  using Config = FocusedConfig;
  explicit FocusedAttention(const Config& config);
  at::Tensor forward(const at::Tensor& x) override;
  void set_grid(const std::vector<std::int64_t>& grid) override { grid_ = grid; }

 private:
  at::Tensor positions() const;

  std::int64_t heads_;
  std::vector<std::int64_t> grid_, made_for_;
  double power_;
  Linear qkv_, proj_;
  Conv2d dwc_;
  at::Tensor positional_encoding_;  // [1, N, C], added to k
  at::Tensor scale_;                // [1, 1, C]
};

struct InlineConfig {
  std::int64_t dim = 0, heads = 0;
  std::vector<std::int64_t> grid;  // height, width
  bool class_token = false;        // one token before those of the grid; the convolution skips it
  bool qkv_bias = true;

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("dim", dim);
    visit("heads", heads);
    visit("grid", grid);
    visit("class_token", class_token);
    visit("qkv_bias", qkv_bias);
  }
};

// `residual.0` and `residual.2` make each picture its own 3x3 depthwise kernel.
class InlineAttention : public Attention {
 public:
  using Config = InlineConfig;
  explicit InlineAttention(const Config& config);
  at::Tensor forward(const at::Tensor& x) override;
  void set_grid(const std::vector<std::int64_t>& grid) override { grid_ = grid; }

 private:
  at::Tensor local(const at::Tensor& x, const at::Tensor& v) const;

  std::int64_t heads_;
  std::vector<std::int64_t> grid_;
  bool class_token_;
  Linear qkv_, proj_;
  Conv1d residual0_, residual2_;
};

}  // namespace mhla::nn
