// Attention of the VLT backbone (RAVLT, MAViT): one projection to q, k, v and a gate, 2-D rotary,
// a 5x5 depthwise convolution of v, output W(gate * (attention + convolution)).
#pragma once

#include "nn/modules/attention.h"
#include "nn/modules/layers.h"

namespace mhla::nn {

struct GatedGridConfig {
  std::int64_t dim = 0, heads = 0;
  std::vector<std::int64_t> grid;  // height, width

  template <typename Visitor>
  void fields(Visitor& visit) {
    visit("dim", dim);
    visit("heads", heads);
    visit("grid", grid);
  }
};

enum class GridCore { rala, mala, softmax };

// Names and shapes of RALA's release: qkvo, lepe and proj are convolutions.
class GatedGridAttention : public Attention {
 public:
  using Config = GatedGridConfig;
  GatedGridAttention(const Config& config, GridCore core);
  at::Tensor forward(const at::Tensor& x) override;
  void set_grid(const std::vector<std::int64_t>& grid) override { grid_ = grid; }

 private:
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;

  std::int64_t heads_;
  std::vector<std::int64_t> grid_;
  GridCore core_;
  Conv2d qkvo_, lepe_, proj_;
};

}  // namespace mhla::nn
