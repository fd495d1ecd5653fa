// The list of shapes.
#include "cli/bench_shapes.h"

#include <cmath>

#include "mhla/core/text.h"
#include "mhla/error.h"

namespace mhla::cli {
namespace {

BenchShape vision(const char* name, std::int64_t batch, std::int64_t heads, std::int64_t d,
                  const BlockLayout& layout) {
  return {.name = name,
          .problem = {.batch = batch, .heads = heads, .dk = d, .dv = d, .layout = layout},
          .is_long = layout.tokens() > 8192};
}

// The authors' 340 M language model: spec 1.9, last column.
BenchShape language(const char* name, std::int64_t batch, std::int64_t tokens) {
  constexpr std::int64_t kKeyWidth = 128, kValueWidth = 256, kChunk = 64;
  return {.name = name,
          .problem = {.batch = batch,
                      .heads = 4,
                      .dk = kKeyWidth,
                      .dv = kValueWidth,
                      .layout = BlockLayout::sequence(tokens, {.block = {kChunk}}),
                      .mask = Mask::causal,
                      .normalizer = Normalizer::none,
                      .feature_map = FeatureMap::relu,
                      .scale = 1 / std::sqrt(static_cast<double>(kKeyWidth))},
          .fused = false,
          .is_long = tokens > 8192};
}

BenchShape decode(const char* name, std::int64_t batch) {
  BenchShape shape = language(name, batch, 32768);
  shape.positions = {2048, 32768};
  return shape;
}

// Half a minute for the ratio that the longest published model is about.
BenchShape beside_softmax(BenchShape shape) {
  shape.with_softmax = true;
  return shape;
}

BenchShape tiny(BenchShape shape) {
  shape.tiny = true;
  return shape;
}

std::vector<BenchShape> make_shapes() {
  std::vector<BenchShape> all = {
      vision("deit-t", 8, 3, 64, BlockLayout::grid({16, 16}, {.block = {4, 4}})),
      vision("dit-s-512", 4, 6, 64, BlockLayout::grid({32, 32}, {.block = {8, 8}})),
      vision("vlt", 2, 2, 32, BlockLayout::grid({56, 56}, {.block = {8, 8}})),
      beside_softmax(
          vision("wan", 1, 12, 128, BlockLayout::grid({21, 30, 50}, {.blocks = {3, 5, 10}}))),
      vision("dit-s-4096", 1, 6, 64, BlockLayout::grid({256, 256}, {.block = {16, 16}})),
      language("lm-2k", 1, 2048),
      language("lm-32k", 1, 32768),
      decode("decode-1", 1),
      decode("decode-16", 16),
      tiny(vision("tiny", 2, 2, 16, BlockLayout::grid({8, 8}, {.block = {4, 4}}))),
      tiny(vision("tiny-video", 1, 2, 16, BlockLayout::grid({4, 6, 4}, {.blocks = {2, 3, 2}}))),
      tiny(language("tiny-lm", 1, 256)),
      tiny(decode("tiny-decode", 1)),
  };
  all.back().positions = {64, 256};
  return all;
}

}  // namespace

const std::vector<BenchShape>& bench_shapes() {
  static const std::vector<BenchShape> all = make_shapes();
  return all;
}

std::vector<BenchShape> select_shapes(const std::vector<std::string>& names) {
  std::vector<BenchShape> selected;
  std::vector<std::string> known;
  for (const BenchShape& shape : bench_shapes()) {
    known.push_back(shape.name);
    if (names.empty() && !shape.tiny) selected.push_back(shape);
  }
  for (const std::string& name : names) {
    bool found = false;
    for (const BenchShape& shape : bench_shapes()) {
      if (shape.name != name) continue;
      selected.push_back(shape);
      found = true;
    }
    if (found) continue;
    const std::string hint = nearest(name, known);
    std::string list;
    for (const std::string& word : known) list += (list.empty() ? "" : ", ") + word;
    if (hint.empty()) fail("bench", "unknown shape '", name, "'; known: ", list);
    fail("bench", "unknown shape '", name, "': did you mean '", hint, "'?");
  }
  return selected;
}

BenchShape growth_shape(std::int64_t tokens) {
  const std::int64_t width = 256, height = tokens / width;
  return vision("growth", 1, 6, 64, BlockLayout::grid({height, width}, {.blocks = {4, 4}}));
}

}  // namespace mhla::cli
