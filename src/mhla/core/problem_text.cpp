// A problem as `key=value` words: one table gives printing, parsing and the program's flags.
#include <cstdio>
#include <functional>
#include <string>

#include "mhla/core/text.h"
#include "mhla/error.h"
#include "mhla/problem.h"

namespace mhla {
namespace {

// Text longer than this is no description of a problem; it bounds the work of the parser.
constexpr std::size_t kMaxText = 1 << 22;  // a layout of 2^18 packed sequences has room

// What has been read so far. Layouts are built at the end, from up to four words.
struct Draft {
  struct LayoutWords {
    std::string grid, sequence, block, blocks;
    bool given() const { return !(grid + sequence + block + blocks).empty(); }
  };
  Problem problem{.layout = BlockLayout::sequence(1, {.block = {1}})};
  LayoutWords q, k;
};

struct FieldRow {
  ProblemField field;
  std::function<void(Draft&, const std::string&)> read;
  std::function<std::string(const Problem&)> print;  // empty result: the default, left out
};

std::int64_t integer(const std::string& key, std::string_view text) {
  const auto value = parse_number<std::int64_t>(text);
  if (!value) fail("problem", key, ": expected a whole number, got '", text, "'");
  return *value;
}

double real(const char* key, std::string_view text) {
  const auto value = parse_number<double>(text);
  if (!value) fail("problem", key, ": expected a number, got '", text, "'");
  return *value;
}

bool truth(const char* key, const std::string& text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  fail("problem", key, ": expected true or false, got '", text, "'");
}

template <typename Enum>
Enum choice(const char* key, const std::string& text, std::initializer_list<Enum> values) {
  std::vector<std::string> known;
  for (const Enum value : values) {
    if (text == name(value)) return value;
    known.emplace_back(name(value));
  }
  std::string list;
  for (const auto& word : known) list += (list.empty() ? "" : ", ") + word;
  fail("problem", key, ": expected one of ", list, ", got '", text, "'");
}

std::vector<std::int64_t> sizes(const std::string& key, std::string_view text) {
  std::vector<std::int64_t> values;
  for (const auto part : split(text, 'x')) values.push_back(integer(key, part));
  return values;
}

Device device(const std::string& text) {
  if (text == "cpu") return Device::cpu();
  if (text == "cuda") return Device::cuda(0);
  if (text.starts_with("cuda:")) {
    if (const auto index = parse_number<int>(std::string_view(text).substr(5))) {
      return Device::cuda(*index);
    }
  }
  fail("problem", "device: expected cpu, cuda or cuda:N, got '", text, "'");
}

std::string shortest(double value) {  // reads back to the same bits
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string(buffer, result.ptr);
}

const std::vector<FieldRow>& rows() {
  static const std::vector<FieldRow> table = {
      {{"grid", "AxB[xC][+...]", "tokens per axis; + packs grids of different size"},
       [](Draft& d, const std::string& v) { d.q.grid = v; },
       {}},
      {{"sequence", "N[+...]", "tokens of a 1-D layout; + packs sequences of different length"},
       [](Draft& d, const std::string& v) { d.q.sequence = v; },
       {}},
      {{"block", "A[xBxC]", "tokens per block and axis; the last block may be shorter"},
       [](Draft& d, const std::string& v) { d.q.block = v; },
       {}},
      {{"blocks", "A[xBxC]", "number of blocks per axis, instead of block"},
       [](Draft& d, const std::string& v) { d.q.blocks = v; },
       {}},
      {{"grid_k", "AxB[xC][+...]", "the keys' grid, where it differs (cross-attention)"},
       [](Draft& d, const std::string& v) { d.k.grid = v; },
       {}},
      {{"sequence_k", "N[+...]", "the keys' sequence, where it differs"},
       [](Draft& d, const std::string& v) { d.k.sequence = v; },
       {}},
      {{"block_k", "A[xBxC]", "the keys' block"},
       [](Draft& d, const std::string& v) { d.k.block = v; },
       {}},
      {{"blocks_k", "A[xBxC]", "the keys' number of blocks"},
       [](Draft& d, const std::string& v) { d.k.blocks = v; },
       {}},
      {{"batch", "COUNT", "batch size B"},
       [](Draft& d, const std::string& v) { d.problem.batch = integer("batch", v); },
       [](const Problem& p) { return std::to_string(p.batch); }},
      {{"heads", "COUNT", "channel heads H"},
       [](Draft& d, const std::string& v) { d.problem.heads = integer("heads", v); },
       [](const Problem& p) { return std::to_string(p.heads); }},
      {{"dk", "COUNT", "width of a query or key head"},
       [](Draft& d, const std::string& v) { d.problem.dk = integer("dk", v); },
       [](const Problem& p) { return std::to_string(p.dk); }},
      {{"dv", "COUNT", "width of a value head; as dk when left out"},
       [](Draft& d, const std::string& v) { d.problem.dv = integer("dv", v); },
       [](const Problem& p) { return std::to_string(p.dv); }},
      {{"mask", "none|causal|block_causal", "which tokens a query sees"},
       [](Draft& d, const std::string& v) {
         d.problem.mask = choice("mask", v, {Mask::none, Mask::causal, Mask::block_causal});
       },
       [](const Problem& p) { return std::string(name(p.mask)); }},
      {{"normalizer", "exact|shared_position|none", "what the output is divided by"},
       [](Draft& d, const std::string& v) {
         d.problem.normalizer = choice(
             "normalizer", v, {Normalizer::exact, Normalizer::shared_position, Normalizer::none});
       },
       [](const Problem& p) { return std::string(name(p.normalizer)); }},
      {{"feature_map", "relu_eps|relu|elu1|identity", "applied to q and k"},
       [](Draft& d, const std::string& v) {
         d.problem.feature_map = choice(
             "feature_map", v,
             {FeatureMap::relu_eps, FeatureMap::relu, FeatureMap::elu1, FeatureMap::identity});
       },
       [](const Problem& p) { return std::string(name(p.feature_map)); }},
      {{"scale", "X", "multiplies every score"},
       [](Draft& d, const std::string& v) { d.problem.scale = real("scale", v); },
       [](const Problem& p) { return p.scale == 1.0 ? std::string() : shortest(p.scale); }},
      {{"eps", "X", "added to the denominator; 0 for exact, 1e-6 for shared_position if left out"},
       [](Draft& d, const std::string& v) { d.problem.eps = real("eps", v); },
       [](const Problem& p) { return p.eps ? shortest(*p.eps) : std::string(); }},
      {{"separate_denominator", "true|false", "the denominator has q and k of its own"},
       [](Draft& d, const std::string& v) {
         d.problem.separate_denominator = truth("separate_denominator", v);
       },
       [](const Problem& p) { return std::string(p.separate_denominator ? "true" : ""); }},
      {{"mixing_per_head", "true|false", "one mixing matrix per head"},
       [](Draft& d, const std::string& v) {
         d.problem.mixing_per_head = truth("mixing_per_head", v);
       },
       [](const Problem& p) { return std::string(p.mixing_per_head ? "true" : ""); }},
      {{"dtype", "f32|f64|bf16|f16", "of q, k, v and o"},
       [](Draft& d, const std::string& v) { d.problem.dtype = parse_dtype(v); },
       [](const Problem& p) { return std::string(name(p.dtype)); }},
      {{"device", "cpu|cuda[:N]", "where the tensors are"},
       [](Draft& d, const std::string& v) { d.problem.device = device(v); },
       [](const Problem& p) { return to_string(p.device); }},
  };
  return table;
}

BlockLayout build_layout(const Draft::LayoutWords& words, const char* suffix) {
  const bool is_grid = !words.grid.empty();
  if (is_grid == !words.sequence.empty()) {
    fail("problem", "layout: give either grid", suffix, " or sequence", suffix, ", got ",
         is_grid ? "both" : "neither");
  }
  if (words.block.empty() == words.blocks.empty()) {
    fail("problem", "layout: give either block", suffix, " (tokens per block) or blocks", suffix,
         " (number of blocks), got ", words.block.empty() ? "neither" : "both");
  }
  const std::string end_of_key(suffix);
  Cut cut;
  if (!words.block.empty()) cut.block = sizes("block" + end_of_key, words.block);
  if (!words.blocks.empty()) cut.blocks = sizes("blocks" + end_of_key, words.blocks);
  if (is_grid) {
    std::vector<std::vector<std::int64_t>> grids;
    for (const auto part : split(words.grid, '+')) {
      grids.push_back(sizes("grid" + end_of_key, part));
    }
    return BlockLayout::packed_grids(grids, cut);
  }
  const auto lengths = split(words.sequence, '+');
  const std::string key = "sequence" + end_of_key;
  if (lengths.size() == 1) return BlockLayout::sequence(integer(key, lengths[0]), cut);
  std::vector<std::int64_t> offsets{0};
  for (const auto length : lengths) {
    const std::int64_t tokens = integer(key, length);
    std::int64_t end = 0;
    if (tokens < 0 || __builtin_add_overflow(offsets.back(), tokens, &end)) {
      fail("problem", key, ": lengths must be >= 0 and their sum must fit 64 bits, got ",
           words.sequence);
    }
    offsets.push_back(end);
  }
  return BlockLayout::packed(offsets, cut);
}

const FieldRow& find_row(const std::string& key) {
  std::vector<std::string> known;
  for (const FieldRow& row : rows()) {
    if (key == row.field.key) return row;
    known.emplace_back(row.field.key);
  }
  const std::string hint = nearest(key, known);
  fail("problem", "unknown key '", key, "'",
       hint.empty() ? std::string() : "; did you mean '" + hint + "'?");
}

}  // namespace

const std::vector<ProblemField>& problem_fields() {
  static const std::vector<ProblemField> fields = [] {
    std::vector<ProblemField> list;
    for (const FieldRow& row : rows()) list.push_back(row.field);
    return list;
  }();
  return fields;
}

std::string Problem::to_string() const {
  std::string text = layout.to_string();
  if (layout_k) {
    const std::string words = layout_k->to_string();
    for (const auto word : split(words, ' ')) {
      const auto equals = word.find('=');
      text += " " + std::string(word.substr(0, equals)) + "_k" + std::string(word.substr(equals));
    }
  }
  for (const FieldRow& row : rows()) {
    const std::string value = row.print ? row.print(*this) : std::string();
    if (!value.empty()) text += std::string(" ") + row.field.key + "=" + value;
  }
  return text;
}

Problem parse_problem(std::string_view text) {
  if (text.size() > kMaxText) {
    fail("problem", "text of ", text.size(), " characters; at most ", kMaxText);
  }
  Draft draft;
  std::vector<std::string> seen;
  for (const auto word : split(text, ' ')) {
    if (word.empty()) continue;
    const auto equals = word.find('=');
    if (equals == std::string_view::npos) fail("problem", "expected key=value, got '", word, "'");
    const std::string key(word.substr(0, equals)), value(word.substr(equals + 1));
    const FieldRow& row = find_row(key);
    if (value.empty()) fail("problem", key, ": expected ", row.field.values, ", got nothing");
    for (const auto& earlier : seen) {
      if (earlier == key) fail("problem", key, ": given twice");
    }
    seen.push_back(key);
    row.read(draft, value);
  }
  bool has_dv = false;
  for (const auto& key : seen) has_dv = has_dv || key == "dv";
  if (!has_dv) draft.problem.dv = draft.problem.dk;
  draft.problem.layout = build_layout(draft.q, "");
  if (draft.k.given()) draft.problem.layout_k = build_layout(draft.k, "_k");
  check(draft.problem);
  return draft.problem;
}

}  // namespace mhla
