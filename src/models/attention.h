// Attention layers as the networks use them: any of the baselines by name, MHLA with the tensor
// names that the upstream of each network has.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/cost.h"
#include "nn/modules/attention.h"
#include "nn/modules/mhla.h"

namespace mhla::models {

enum class Task { classification, dit, text_to_image, video, language, vlt };

// Where a layer stands.
struct Place {
  Task task = Task::classification;
  std::int64_t dim = 0, heads = 0;
  std::vector<std::int64_t> grid = {};    // tokens per axis; empty: a sequence
  std::vector<std::int64_t> blocks = {};  // MHLA: blocks per axis of the grid
  std::int64_t tokens = 0;                // sequences: the longest
  std::int64_t block = 64;                // sequences: tokens of one block
  bool class_token = false;               // one token stands before those of the grid

  std::int64_t count() const;  // tokens, the class token included
};

// A layer with a mixing matrix, in whatever shape upstream stores it.
class Mixed {
 public:
  virtual ~Mixed() = default;
  virtual void constrain() = 0;
  virtual at::Tensor& mixing() = 0;  // [M, M, 1, 1] and the like
  virtual BlockLayout layout() const = 0;
  virtual bool causal() const = 0;
  // `stored`, which was made for `from`, for this layer's layout and in its shape.
  at::Tensor resampled(const at::Tensor& stored, const BlockLayout& from);

 protected:
  // This layer's `matrix` for tokens that lie otherwise than it was made for; no gradients.
  at::Tensor interpolated(const at::Tensor& matrix, const BlockLayout& wanted);
};

// At most as many blocks as the grid has tokens, on each axis.
std::vector<std::int64_t> blocks_within(std::vector<std::int64_t> blocks,
                                        const std::vector<std::int64_t>& grid);

// name: one of nn::attention_names(). options: as the layer's, after what the place implies.
std::shared_ptr<nn::Attention> make_attention(const std::string& name, const Place& place,
                                              const std::string& options);

// Linear maps and convolutions go to "attention projections", what is between them to "attention",
// the mixing of block summaries to "mixing".
void count_attention(CostSheet& sheet, const std::string& name, const Place& place,
                     nn::Attention& layer);

// The layout that a mixing matrix of M blocks was made for: the nearest to the shape of `like` with
// M blocks (16 blocks: 4x4 on a square).
BlockLayout layout_with(std::int64_t blocks, const BlockLayout& like);

}  // namespace mhla::models
