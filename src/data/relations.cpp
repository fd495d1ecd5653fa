// Drawing of the built-in pictures: a pixel is the mean over a few points inside it.
#include "data/relations.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "data/image_set.h"
#include "data/random.h"
#include "mhla/error.h"

namespace mhla::data {
namespace {

using Rgb = std::array<int, 3>;

struct Named {
  const char* name;
  Rgb colour;
};
// Cores: far apart, and told apart without their surroundings.
constexpr std::array<Named, kRelationClasses> kCores{{{"red", {220, 30, 30}},
                                                      {"orange", {245, 140, 20}},
                                                      {"yellow", {240, 230, 60}},
                                                      {"green", {40, 160, 50}},
                                                      {"cyan", {60, 210, 220}},
                                                      {"blue", {40, 70, 210}},
                                                      {"purple", {130, 50, 170}},
                                                      {"pink", {250, 150, 200}},
                                                      {"white", {250, 250, 250}},
                                                      {"black", {10, 10, 10}}}};
// Rings and squares have any hue; those of a picture are at least kSlot - 2 kJitter apart.
constexpr int kHues = 8;
constexpr double kSlot = 1.0 / kHues, kJitter = kSlot / 6;

Rgb colour_of_hue(double hue) {  // in turns
  Rgb colour;
  for (int c = 0; c < 3; ++c) {
    // Red at 0, green at a third, blue at two thirds; linear in between.
    const double turn = hue + (3 - c) / 3.0;
    const double distance = std::abs(turn - std::floor(turn) - 0.5);  // 0.5: this channel alone
    const double share = std::clamp(6 * distance - 1, 0.0, 1.0);
    colour[c] = static_cast<int>(40 + 180 * share);
  }
  return colour;
}

constexpr int kCells = 4;              // the places are a grid of 4 x 4
constexpr int kFewest = 3, kMost = 7;  // discs

struct Shape {
  bool disc;
  double x, y;  // centre, in cells
  Rgb outer, inner;
};

template <typename Container>
void shuffle(Container& values, Random& random) {
  for (std::size_t i = values.size() - 1; i > 0; --i) {
    std::swap(values[i], values[static_cast<std::size_t>(random.below(std::int64_t(i) + 1))]);
  }
}

// Whether a point (in cells, from the shape's centre) is inside, and which colour it has there.
const Rgb* colour_at(const Shape& shape, double dx, double dy) {
  if (!shape.disc) return std::max(std::abs(dx), std::abs(dy)) < 0.36 ? &shape.outer : nullptr;
  const double squared = dx * dx + dy * dy;
  if (squared < 0.25 * 0.25) return &shape.inner;
  return squared < 0.44 * 0.44 ? &shape.outer : nullptr;
}

constexpr int kPoints = 3;  // per pixel and axis

// Shapes do not overlap, so each blends with the ground alone.
void draw(io::Image& image, const Shape& shape, const Rgb& ground) {
  const double cell = static_cast<double>(image.width()) / kCells;
  const auto first = [&](double centre) {
    return std::max(0, static_cast<int>((centre - 0.5) * cell));
  };
  const auto last = [&](double centre) {
    return std::min(image.width(), static_cast<int>((centre + 0.5) * cell) + 1);
  };
  for (int y = first(shape.y); y < last(shape.y); ++y) {
    for (int x = first(shape.x); x < last(shape.x); ++x) {
      int outer = 0, inner = 0;
      for (int point = 0; point < kPoints * kPoints; ++point) {
        const int across = point % kPoints, down = point / kPoints;
        const double px = (x + (across + 0.5) / kPoints) / cell;
        const double py = (y + (down + 0.5) / kPoints) / cell;
        const Rgb* found = colour_at(shape, px - shape.x, py - shape.y);
        outer += found == &shape.outer;
        inner += found == &shape.inner;
      }
      if (outer + inner == 0) continue;
      const int rest = kPoints * kPoints - outer - inner;
      std::uint8_t* to = image.row(y) + std::ptrdiff_t{3} * x;
      for (std::size_t c = 0; c < 3; ++c) {
        const int sum = rest * ground[c] + outer * shape.outer[c] + inner * shape.inner[c];
        to[c] = static_cast<std::uint8_t>(sum / (kPoints * kPoints));
      }
    }
  }
}

void add_noise(io::Image& image, Random& random) {
  std::vector<std::uint8_t>& pixels = image.pixels();
  for (std::size_t i = 0; i < pixels.size(); i += 3) {
    const int noise = static_cast<int>(random.below(25)) - 12;
    for (std::size_t c = i; c < i + 3; ++c) {
      pixels[c] = static_cast<std::uint8_t>(std::clamp(pixels[c] + noise, 0, 255));
    }
  }
}

class Relations final : public ImageSet {
 public:
  Relations(const ImageSource& source, bool train)
      : seed_(source.seed),
        size_(source.image_size),
        train_(train),
        samples_(source.samples > 0 ? source.samples
                 : train            ? 20000
                                    : 2000) {
    for (const Named& core : kCores) classes_.emplace_back(core.name);
  }
  std::string format() const override { return "relations"; }
  std::int64_t size() const override { return samples_; }
  std::int64_t target(std::int64_t index) const override {
    return draw_relation(seed_, number(index), 0).target;
  }
  io::Image picture(std::int64_t index) const override {
    return draw_relation(seed_, number(index), size_).image;
  }
  std::string name(std::int64_t index) const override {
    return "relations/" + std::string(train_ ? "train/" : "val/") + std::to_string(index);
  }
  std::optional<ImageSize> picture_size() const override { return ImageSize{size_, size_}; }

 private:
  // Evaluation uses numbers that no training set reaches.
  std::uint64_t number(std::int64_t index) const {
    return static_cast<std::uint64_t>(index) + (train_ ? 0 : std::uint64_t{1} << 40);
  }
  std::uint64_t seed_;
  int size_;
  bool train_;
  std::int64_t samples_;
};

}  // namespace

const char* relation_class(int target) { return kCores.at(static_cast<std::size_t>(target)).name; }

// A size of 0 draws nothing and gives the class alone.
Relation draw_relation(std::uint64_t seed, std::uint64_t index, int size) {
  Random random(seed, index);
  std::array<int, kCells * kCells> places;
  std::array<int, kHues> keys;
  std::array<int, kRelationClasses> cores;
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int>(i);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int>(i);
  for (std::size_t i = 0; i < cores.size(); ++i) cores[i] = static_cast<int>(i);
  shuffle(places, random);
  shuffle(keys, random);
  shuffle(cores, random);
  const int discs = kFewest + static_cast<int>(random.below(kMost - kFewest + 1));
  Relation result;
  result.target = cores[0];  // the first disc is the one that the square points to
  if (size == 0) return result;

  std::array<Rgb, kHues> rings;
  const double start = random.uniform();
  for (std::size_t i = 0; i < rings.size(); ++i) {
    rings[i] = colour_of_hue(start + keys[i] * kSlot + random.uniform(-kJitter, kJitter));
  }
  std::vector<Shape> shapes;
  for (int i = 0; i <= discs; ++i) {
    const bool disc = i < discs;
    const int column = places[i] % kCells, line = places[i] / kCells;
    const double x = column + 0.5 + random.uniform(-0.06, 0.06);
    const double y = line + 0.5 + random.uniform(-0.06, 0.06);
    const auto of = static_cast<std::size_t>(disc ? i : 0);  // the square has the first one's hue
    shapes.push_back({disc, x, y, rings[of], kCores[static_cast<std::size_t>(cores[of])].colour});
  }
  const int grey = 110 + static_cast<int>(random.below(60));
  const auto byte = static_cast<std::uint8_t>(grey);
  result.image = io::Image(size, size, byte, byte, byte);
  for (const Shape& shape : shapes) draw(result.image, shape, {grey, grey, grey});
  add_noise(result.image, random);
  return result;
}

std::unique_ptr<ImageSet> make_relations(const ImageSource& source, bool train) {
  if (source.image_size < 8 || source.image_size > 4096) {
    fail("data", "relations: expected an image_size of 8 to 4096, got ", source.image_size);
  }
  if (source.samples < 0) fail("data", "relations: cannot have ", source.samples, " samples");
  return std::make_unique<Relations>(source, train);
}

}  // namespace mhla::data
