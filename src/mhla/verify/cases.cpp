// Which problems are generated, and the values they are filled with.
#include "mhla/verify/cases.h"

#include <cmath>
#include <utility>

#include "mhla/verify/random.h"
#include "mhla/verify/rounding.h"

namespace mhla::verify {
namespace {

using Sizes = std::vector<std::int64_t>;

constexpr Mask kMasks[] = {Mask::none, Mask::causal, Mask::block_causal};
constexpr Normalizer kNormalizers[] = {Normalizer::exact, Normalizer::shared_position,
                                       Normalizer::none};
constexpr FeatureMap kMaps[] = {FeatureMap::relu_eps, FeatureMap::relu, FeatureMap::elu1,
                                FeatureMap::identity};

struct NamedLayout {
  std::string name;
  BlockLayout layout;
};

// Small enough for a dense oracle, and each with an edge of its own.
std::vector<NamedLayout> self_layouts() {
  using L = BlockLayout;
  return {
      {"sequence", L::sequence(32, {.block = {8}})},
      {"ragged-tail", L::sequence(37, {.block = {8}})},
      {"unequal-blocks", L::sequence(23, {.blocks = {5}})},
      {"one-block", L::sequence(9, {.block = {9}})},
      {"blocks-of-one", L::sequence(11, {.block = {1}})},
      {"14x14-in-4x4", L::grid({14, 14}, {.block = {4, 4}})},
      {"52-columns-in-10", L::grid({2, 52}, {.blocks = {2, 10}})},
      {"ragged-3d", L::grid({3, 5, 7}, {.block = {2, 2, 3}})},
      {"even-3d", L::grid({4, 4, 4}, {.blocks = {2, 1, 2}})},
      {"packed", L::packed({0, 5, 5, 17, 30, 31}, {.block = {4}})},
      {"packed-empty-ends", L::packed({0, 0, 13, 21, 21}, {.block = {6}})},
      {"packed-grids", L::packed_grids({{4, 6}, {3, 8}, {4, 7}}, {.block = {2, 4}})},
  };
}

struct NamedPair {
  std::string name;
  BlockLayout q, k;
};

std::vector<NamedPair> cross_layouts() {
  using L = BlockLayout;
  return {
      {"longer-keys", L::sequence(13, {.block = {4}}), L::sequence(29, {.block = {8}})},
      {"picture-to-text", L::grid({6, 7}, {.block = {4, 4}}), L::sequence(11, {.block = {4}})},
      {"text-to-video", L::sequence(10, {.blocks = {3}}), L::grid({3, 4, 5}, {.block = {2, 2, 2}})},
      {"same-grid-other-cut", L::grid({6, 6}, {.block = {3, 3}}),
       L::grid({6, 6}, {.block = {2, 6}})},
      {"one-key", L::sequence(7, {.block = {2}}), L::sequence(1, {.block = {1}})},
      {"packed-pairs", L::packed({0, 5, 9, 9, 14}, {.block = {4}}),
       L::packed({0, 3, 3, 8, 17}, {.block = {3}})},
  };
}

// Walks through the settings that need not be combined with everything, at periods without a common
// factor, so that neighbouring cases differ in all of them.
class Settings {
 public:
  Case next(Problem problem) {
    const std::uint64_t i = count_++;
    constexpr std::pair<int, int> kWidths[] = {{5, 7}, {8, 8}, {4, 3}, {1, 6}, {7, 2}};
    problem.dk = kWidths[i % 5].first;
    problem.dv = kWidths[i % 5].second;
    problem.batch = i % 3 == 1 ? 2 : 1;
    problem.heads = 1 + static_cast<std::int64_t>(i % 2);
    if (i % 7 == 3) problem.scale = 0.35;
    if (i % 11 == 5 && problem.normalizer != Normalizer::none) problem.eps = 1e-3;
    problem.separate_denominator = i % 4 == 2 && problem.normalizer != Normalizer::none;
    // A denominator of nothing but 1e-6 throws f16 past its largest number, 65504.
    const bool unbounded = problem.separate_denominator ||
                           problem.normalizer == Normalizer::shared_position;
    // In bf16 such rows are right but hide all others in a norm, so half of the cases do without.
    const bool avoid = problem.dtype == DType::f16 || (problem.dtype == DType::bf16 && i % 2 == 0);
    if (avoid && unbounded) problem.eps = 0.1;
    problem.mixing_per_head = i % 9 == 4;
    Case c{.name = {}, .form = {}, .problem = problem};
    c.gap = i % 3 == 0 ? -1 : static_cast<std::int64_t>(i % 5);
    const bool one_axis = problem.layout.axes() == 1 && problem.keys().axes() == 1;
    c.spare_mixing = one_axis && i % 6 == 5 ? 2 : 0;
    c.zero_row = i % 13 == 8;
    c.skipped_gradient = i % 8 == 7 ? static_cast<int>(i / 8 % 4) : -1;
    if (problem.dtype == DType::f64 && i % 2 == 1) c.mixing_dtype = DType::f64;
    return c;
  }

 private:
  std::uint64_t count_ = 0;
};

std::string form_of(const Problem& p) {
  const std::string normalizer = name(p.normalizer);
  if (p.layout_k) return "cross/" + normalizer;
  if (p.layout.sequences().size() > 1) return "varlen/" + std::string(name(p.mask));
  if (p.separate_denominator) return "separate/" + normalizer;
  return std::string(name(p.mask)) + "/" + normalizer;
}

void add(std::vector<Case>& all, Case c, const std::string& layout_name) {
  const Problem& p = c.problem;
  c.form = form_of(p);
  c.name = std::string(name(p.mask)) + "/" + name(p.normalizer) + "/" + name(p.feature_map) + "/" +
           layout_name + "/" + name(p.dtype);
  c.name += " B" + std::to_string(p.batch) + "H" + std::to_string(p.heads) + "dk" +
            std::to_string(p.dk) + "dv" + std::to_string(p.dv);
  if (p.separate_denominator) c.name += " separate";
  if (p.mixing_per_head) c.name += " per-head";
  if (p.scale != 1) c.name += " scaled";
  if (p.eps) c.name += " eps";
  if (c.gap >= 0) c.name += " fused+" + std::to_string(c.gap);
  if (c.spare_mixing > 0) c.name += " spare";
  if (c.zero_row) c.name += " zero-row";
  if (c.skipped_gradient >= 0) c.name += " skip" + std::to_string(c.skipped_gradient);
  c.seed = hash(c.name);
  all.push_back(std::move(c));
}

template <typename Use>
void for_every_form(Use use) {
  for (const Mask mask : kMasks) {
    for (const Normalizer normalizer : kNormalizers) {
      for (const FeatureMap map : kMaps) use(mask, normalizer, map);
    }
  }
}

void add_self(std::vector<Case>& all, Settings& settings) {
  const std::vector<NamedLayout> layouts = self_layouts();
  for_every_form([&](Mask mask, Normalizer normalizer, FeatureMap map) {
    for (const NamedLayout& l : layouts) {
      add(all,
          settings.next({.layout = l.layout,
                         .mask = mask,
                         .normalizer = normalizer,
                         .feature_map = map,
                         .dtype = DType::f64}),
          l.name);
    }
  });
  std::size_t turn = 0;  // the other dtypes take the layouts in turn, two for each form
  for (const DType dtype :
       {DType::f32, DType::f32, DType::bf16, DType::bf16, DType::f16, DType::f16}) {
    for_every_form([&](Mask mask, Normalizer normalizer, FeatureMap map) {
      const NamedLayout& l = layouts[(turn * 5 + turn / 4) % layouts.size()];
      ++turn;
      add(all,
          settings.next({.layout = l.layout,
                         .mask = mask,
                         .normalizer = normalizer,
                         .feature_map = map,
                         .dtype = dtype}),
          l.name);
    });
    ++turn;  // so that each round pairs forms and layouts differently
  }
}

void add_cross(std::vector<Case>& all, Settings& settings) {
  const std::vector<NamedPair> pairs = cross_layouts();
  std::size_t turn = 0;
  const auto add_one = [&](const NamedPair& pair, Normalizer normalizer, FeatureMap map,
                           DType dtype) {
    add(all,
        settings.next({.layout = pair.q,
                       .layout_k = pair.k,
                       .normalizer = normalizer,
                       .feature_map = map,
                       .dtype = dtype}),
        pair.name);
  };
  for (const Normalizer normalizer : {Normalizer::exact, Normalizer::none}) {
    for (const FeatureMap map : kMaps) {
      for (const NamedPair& pair : pairs) add_one(pair, normalizer, map, DType::f64);
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        add_one(pairs[turn++ % pairs.size()], normalizer, map, dtype);
      }
    }
  }
}

// Head sizes of real models, which accelerators have kernels for.
void add_heavy(std::vector<Case>& all) {
  using L = BlockLayout;
  const std::vector<NamedLayout> layouts = {
      {"heavy-sequence", L::sequence(256, {.block = {64}})},
      {"heavy-ragged-tail", L::sequence(200, {.block = {64}})},
      {"heavy-14x14-in-4", L::grid({14, 14}, {.blocks = {4, 4}})},
      {"heavy-16x16", L::grid({16, 16}, {.block = {4, 4}})},
      {"heavy-3d", L::grid({4, 6, 10}, {.blocks = {2, 2, 2}})},
      {"heavy-packed", L::packed({0, 100, 100, 165, 250}, {.block = {32}})},
  };
  constexpr std::pair<int, int> kWidths[] = {{64, 64}, {128, 128}, {64, 128}, {32, 32}};
  std::size_t i = 0;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const Mask mask : kMasks) {
      for (const Normalizer normalizer : kNormalizers) {
        for (int repeat = 0; repeat < 2; ++repeat, ++i) {
          const NamedLayout& l = layouts[(i + i / 6) % layouts.size()];
          Case c{.name = {},
                 .form = {},
                 .problem = {.batch = i % 5 == 3 ? 2 : 1,
                             .heads = i % 5 == 3 ? 1 : 2,
                             .dk = kWidths[i % 4].first,
                             .dv = kWidths[i % 4].second,
                             .layout = l.layout,
                             .mask = mask,
                             .normalizer = normalizer,
                             .feature_map = kMaps[(i + i / 4) % 4],
                             .dtype = dtype}};
          if (normalizer == Normalizer::none) c.problem.scale = 0.125;
          c.problem.separate_denominator = normalizer != Normalizer::none && i % 7 == 2;
          c.problem.mixing_per_head = i % 11 == 6;
          c.gap = i % 2 == 0 ? -1 : 8;  // 8 keeps rows of 16-bit numbers aligned to 16 bytes
          c.heavy = true;
          add(all, c, l.name);
        }
      }
    }
  }
}

// Heads of language models: one, two and three groups of eight blocks, the last of them short.
void add_language(std::vector<Case>& all) {
  struct Sizes {
    std::int64_t tokens, dk, dv;
    FeatureMap map;
    DType dtype;
    std::int64_t gap;
  };
  const Sizes sizes[] = {{300, 128, 256, FeatureMap::relu, DType::f16, -1},
                         {460, 128, 128, FeatureMap::elu1, DType::bf16, 8},
                         {700, 128, 256, FeatureMap::relu, DType::bf16, -1},
                         {1110, 72, 104, FeatureMap::identity, DType::bf16, 8}};
  for (const Sizes& s : sizes) {
    const bool short_one = s.tokens < 500;
    Case c{.name = {},
           .form = {},
           .problem = {.batch = short_one ? 2 : 1,
                       .heads = short_one ? 2 : 1,
                       .dk = s.dk,
                       .dv = s.dv,
                       .layout = BlockLayout::sequence(s.tokens, {.block = {64}}),
                       .mask = Mask::causal,
                       .normalizer = Normalizer::none,
                       .feature_map = s.map,
                       .scale = 0.125,
                       .dtype = s.dtype}};
    c.problem.mixing_per_head = s.map == FeatureMap::elu1;
    c.gap = s.gap;
    c.heavy = true;
    add(all, c, "language-" + std::to_string(s.tokens));
  }
}

// bf16 at head sizes that CPU kernels multiply in pairs, odd and even, on few tokens.
void add_pairs(std::vector<Case>& all) {
  const std::vector<NamedLayout> layouts = self_layouts();
  constexpr std::pair<int, int> kWidths[] = {{16, 16}, {17, 31}, {33, 20}, {40, 7}, {3, 90}};
  std::size_t i = 0;
  for (const Mask mask : kMasks) {
    for (const Normalizer normalizer : kNormalizers) {
      for (int repeat = 0; repeat < 2; ++repeat, ++i) {
        const NamedLayout& l = layouts[(i * 5 + i / 4) % layouts.size()];
        Case c{.name = {},
               .form = {},
               .problem = {.heads = 1 + static_cast<std::int64_t>(i % 2),
                           .dk = kWidths[i % 5].first,
                           .dv = kWidths[i % 5].second,
                           .layout = l.layout,
                           .mask = mask,
                           .normalizer = normalizer,
                           .feature_map = kMaps[(i + i / 4) % 4],
                           .dtype = DType::bf16}};
        // As in Settings: rows divided by nothing but eps would hide all others in a norm.
        if (normalizer == Normalizer::shared_position) c.problem.eps = 0.1;
        c.gap = i % 3 == 0 ? -1 : static_cast<std::int64_t>(i % 5);
        add(all, c, l.name);
      }
    }
  }
}

}  // namespace

std::vector<Case> cases() {
  std::vector<Case> all;
  Settings settings;
  add_self(all, settings);
  add_cross(all, settings);
  add_heavy(all);
  add_language(all);
  add_pairs(all);
  return all;
}

DenseInputs make_inputs(const Case& c) {
  const Problem& p = c.problem;
  Random random(c.seed);
  // A denominator of signed features can come arbitrarily near zero, where no two computations
  // agree.
  const bool positive = p.feature_map == FeatureMap::identity && p.normalizer != Normalizer::none;
  const auto fill = [&](std::int64_t tokens, std::int64_t width, double low, double high) {
    std::vector<double> values(static_cast<std::size_t>(p.batch * tokens * p.heads * width));
    for (double& x : values) x = round_to(p.dtype, random.uniform(low, high));
    return values;
  };
  const double low = positive ? 0.1 : -1.0;
  const std::int64_t nq = p.layout.tokens(), nk = p.keys().tokens();
  DenseInputs in;
  in.q = fill(nq, p.dk, low, 1);
  in.k = fill(nk, p.dk, low, 1);
  in.v = fill(nk, p.dv, -1, 1);
  in.d_o = fill(nq, p.dv, -1, 1);
  if (p.separate_denominator) {
    in.q_den = fill(nq, p.dk, low, 1);
    in.k_den = fill(nk, p.dk, low, 1);
  }
  in.mixing_rows = p.layout.mixing_size() + c.spare_mixing;
  in.mixing_cols = p.keys().mixing_size() + c.spare_mixing;
  const std::int64_t matrices = p.mixing_per_head ? p.heads : 1;
  for (std::int64_t i = 0; i < matrices * in.mixing_rows * in.mixing_cols; ++i) {
    const std::int64_t row = i / in.mixing_cols % in.mixing_rows;
    double weight = random.uniform(0.05, 1);
    // A weight may be zero, and negative where nothing divides by it.
    if (i % 17 == 16) weight = p.normalizer == Normalizer::none ? -weight : 0;
    if (c.zero_row && row == p.layout.mixing_size() - 1) weight = 0;
    in.mixing.push_back(round_to(c.mixing_dtype, weight));
  }
  return in;
}

}  // namespace mhla::verify
