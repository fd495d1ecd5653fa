// The mixing matrix: how it starts, how it is kept in range, how it moves to another layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mhla/layout.h"
#include "mhla/tensor_view.h"

namespace mhla {

// The authors' five initial transforms of block distance (spec 1.6).
enum class Transform { linear, cos, exp, gaussian, local };
Transform parse_transform(const std::string& text);
const char* name(Transform transform);

struct TransformOptions {
  double exp_sigma = 3.0;        // exp: decay length in blocks
  double local_threshold = 1.5;  // local: blocks within this distance weigh one
};

// Applied after an optimiser step. Weights are clamped first, then rows are optionally rescaled.
struct Constraint {
  double low = 0.0;
  double high = 1.0;
  bool renormalize_rows = false;  // rows sum to one again; a row of zeros becomes uniform
};
// In place, on f32 [Mq, Mk] or [H, Mq, Mk] in host memory. A NaN weight is an error.
void constrain(const TensorView& mixing, const Constraint& constraint);

struct ResampleOptions {
  bool causal = false;        // weights above the diagonal have no meaning: never read, zero after
  bool keep_row_sums = true;  // a row that sums to one still does when the number of blocks changes
};

class ToeplitzMixing;

// f32 weights [Mq, Mk], or [H, Mq, Mk] for one matrix per head; row = query block.
class MixingMatrix {
 public:
  // The paper: 1 - dist / max dist of the row, rows sum to one (Sec. 4.2).
  static MixingMatrix locality(const BlockLayout& layout);
  // The authors' code: distance over the global maximum, columns sum to one (gaussian:
  // unnormalised).
  static MixingMatrix authors(const BlockLayout& layout, Transform transform,
                              const TransformOptions& options = {});
  static MixingMatrix uniform(const BlockLayout& layout);                                 // 1 / M
  static MixingMatrix uniform(const BlockLayout& layout_q, const BlockLayout& layout_k);  // 1 / Mk
  static MixingMatrix causal_uniform(const BlockLayout& layout);  // 1 / (i + 1) for b <= i
  static MixingMatrix constant(std::int64_t rows, std::int64_t cols, float value);
  // Copies heads * rows * cols weights; heads = 0 means one matrix shared by all heads.
  static MixingMatrix from(const float* weights, std::int64_t heads, std::int64_t rows,
                           std::int64_t cols);

  std::int64_t heads() const { return heads_; }  // 0: shared by all heads
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  float at(std::int64_t row, std::int64_t col, std::int64_t head = 0) const;
  float& at(std::int64_t row, std::int64_t col, std::int64_t head = 0);
  const std::vector<float>& data() const { return data_; }
  const std::string& origin() const { return origin_; }  // how it was made, for reports
  TensorView view() const;

  MixingMatrix repeated_per_head(std::int64_t heads) const;
  void constrain(const Constraint& constraint);

  // Multilinear interpolation between block centres: another resolution, a longer context.
  MixingMatrix resample(const BlockLayout& from, const BlockLayout& to,
                        const ResampleOptions& options = {}) const;
  // Mean weight of each block offset.
  ToeplitzMixing to_toeplitz(const BlockLayout& layout, bool causal = false) const;

 private:
  MixingMatrix(std::int64_t heads, std::int64_t rows, std::int64_t cols, std::string origin);
  std::int64_t heads_, rows_, cols_;
  std::vector<float> data_;
  std::string origin_;
};

// Weights by block offset (query block minus key block) per axis: no maximum length. Offsets past
// the stored radius take the weight at the radius.
class ToeplitzMixing {
 public:
  // weights: row-major over offsets -radius..radius of each axis ((2r0+1) x (2r1+1) x ...).
  ToeplitzMixing(std::vector<std::int64_t> radius, std::vector<float> weights,
                 bool normalize_rows = false);
  // Causal, 1-D: weights[d] for query block - key block = d >= 0.
  static ToeplitzMixing causal(const std::vector<float>& weights, bool normalize_rows = false);

  int axes() const { return static_cast<int>(radius_.size()); }
  bool normalizes_rows() const { return normalize_rows_; }
  float at(const std::vector<std::int64_t>& offset) const;
  // Row i of the causal matrix over key blocks 0..i, normalised if asked for.
  std::vector<float> causal_row(std::int64_t i) const;
  MixingMatrix matrix(const BlockLayout& layout) const;

  const std::vector<std::int64_t>& radius() const { return radius_; }
  const std::vector<float>& weights() const { return weights_; }

 private:
  std::vector<std::int64_t> radius_;
  std::vector<float> weights_;
  bool normalize_rows_;
};

}  // namespace mhla
