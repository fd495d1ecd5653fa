#include "models/attention.h"

#include <algorithm>
#include <cmath>

#include "mhla/error.h"
#include "models/mhla_layer.h"
#include "models/vlt/grid_attention.h"

namespace mhla::models {
namespace {

const char* task_word(Task task) {
  switch (task) {
    case Task::classification: return "classification";
    case Task::dit: return "dit";
    case Task::text_to_image: return "text_to_image";
    case Task::video: return "video";
    case Task::language: return "language";
    case Task::vlt: return "vlt";
  }
  fail(ErrorCode::internal, "models", "unknown task");
}

std::string extents(const std::vector<std::int64_t>& axes) {
  std::string text;
  for (const std::int64_t axis : axes) {
    if (!text.empty()) text += 'x';
    text += std::to_string(axis);
  }
  return text;
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> words) {
  return std::find(words.begin(), words.end(), name) != words.end();
}

// Layers for pictures read a video as one tall picture, frame below frame.
std::vector<std::int64_t> picture_of(const std::vector<std::int64_t>& grid) {
  return grid.size() == 3 ? std::vector<std::int64_t>{grid[0] * grid[1], grid[2]} : grid;
}

// Softmax and linear attention exist in the form of each task; pictures' is the common one.
std::string own_task(const std::string& name, const Place& place) {
  if (name == "softmax" && place.task == Task::text_to_image) return "dit";
  if (name == "linear" && place.task == Task::vlt) return "dit";
  return task_word(place.task);
}

std::string mhla_text(const Place& place) {
  std::string text = "preset=authors";
  if (place.task == Task::language) {
    text += " block=" + std::to_string(place.block) + " tokens=" + std::to_string(place.tokens) +
            " separate_qkv=true";
  } else {
    text += " grid=" + extents(place.grid) +
            " blocks=" + extents(blocks_within(place.blocks, place.grid));
  }
  if (place.task == Task::video) text += " separate_qkv=true";
  // Not released: the operator alone in the place of Sana's linear attention.
  if (place.task == Task::text_to_image) return text + " preset=paper task=dit qkv_bias=false";
  return text + " task=" + task_word(place.task);
}

std::string implied(const std::string& name, const Place& place) {
  const std::string width = "dim=" + std::to_string(place.dim);
  const std::string heads = width + " heads=" + std::to_string(place.heads);
  // Mamba2 has heads of 64 channels of its own where they divide its inner width.
  if (name == "mamba2") return 2 * place.dim % 64 == 0 ? width : heads;
  if (name == "mhla") return heads + " " + mhla_text(place);
  if (is_one_of(name, {"softmax", "linear"})) {
    const std::string text = heads + " task=" + own_task(name, place);
    return place.grid.empty() || place.task == Task::classification || place.task == Task::dit ||
                   place.task == Task::text_to_image ||
                   (name == "linear" && place.task == Task::vlt)
               ? text
               : text + " grid=" + extents(place.grid);
  }
  if (is_one_of(name, {"focused", "inline", "rala", "mala"})) {
    std::string text = heads + " grid=" + extents(picture_of(place.grid));
    if (name == "inline" && place.class_token) text += " class_token=true";
    return text;
  }
  return heads;
}

void check_place(const std::string& name, const Place& place) {
  const bool picture = is_one_of(name, {"focused", "inline", "rala", "mala"});
  if (place.task == Task::language && picture) {
    fail("models", "attention: ", name,
         " sees the whole sequence, a language model needs a causal ",
         "one: mhla, softmax, linear, retnet, gla, simple_gla, gated_deltanet or mamba2");
  }
  if (place.class_token && name != "inline" && (picture || name == "mhla")) {
    fail("models", "attention: ", name, " has no place for a class token beside the grid: give ",
         "class_token=false");
  }
}

}  // namespace

std::vector<std::int64_t> blocks_within(std::vector<std::int64_t> blocks,
                                        const std::vector<std::int64_t>& grid) {
  if (blocks.size() != grid.size()) return blocks;  // BlockLayout says what is wrong
  for (std::size_t i = 0; i < grid.size(); ++i) blocks[i] = std::min(blocks[i], grid[i]);
  return blocks;
}

std::int64_t Place::count() const {
  if (grid.empty()) return tokens;
  std::int64_t count = 1;
  for (const std::int64_t axis : grid) count *= axis;
  return count + (class_token ? 1 : 0);
}

std::shared_ptr<nn::Attention> make_attention(const std::string& name, const Place& place,
                                              const std::string& options) {
  check_place(name, place);
  if (place.task == Task::vlt && is_one_of(name, {"mhla", "linear"})) {
    return std::make_shared<GridAttention>(name, place, options);
  }
  const std::string text = implied(name, place) + " " + options;
  if (name != "mhla") return nn::make_attention(name, text);
  return std::make_shared<MhlaLayer>(nn::MHLAConfig::read(text), MhlaNames::of(place.task));
}

BlockLayout layout_with(std::int64_t blocks, const BlockLayout& like) {
  const Sequence& shape = like.sequences().front();
  if (shape.grid.size() == 1) return BlockLayout::sequence(blocks, {.block = {1}});
  // Among the factorisations the one whose proportions are nearest to those of `like`.
  std::vector<std::int64_t> best;
  double least = 0;
  const auto consider = [&](std::vector<std::int64_t> counts) {
    double distance = 0;
    const double scale = std::pow(static_cast<double>(blocks) / static_cast<double>(shape.blocks),
                                  1.0 / static_cast<double>(counts.size()));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const double ratio = static_cast<double>(counts[i]) /
                           (scale * static_cast<double>(shape.counts[i]));
      distance += std::abs(std::log(ratio));
    }
    if (best.empty() || distance < least) best = std::move(counts), least = distance;
  };
  for (std::int64_t a = 1; a <= blocks; ++a) {
    if (blocks % a != 0) continue;
    if (shape.grid.size() == 2) {
      consider({a, blocks / a});
      continue;
    }
    for (std::int64_t b = 1; b <= blocks / a; ++b) {
      if (blocks / a % b == 0) consider({a, b, blocks / a / b});
    }
  }
  return BlockLayout::grid(best, {.block = std::vector<std::int64_t>(best.size(), 1)});
}

}  // namespace mhla::models
