// Which operation, with which argument, and the parser of timm's text form.
#include "data/rand_augment.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "data/colour.h"
#include "mhla/error.h"

namespace mhla::data {

const char* name_of(AugmentOp op) {
  static constexpr std::array<const char*, kAugmentOps> kNames = {
      "auto_contrast", "equalize",     "invert",  "rotate",      "posterize",
      "solarize",      "solarize_add", "colour",  "contrast",    "brightness",
      "sharpness",     "shear_x",      "shear_y", "translate_x", "translate_y"};
  return kNames.at(static_cast<std::size_t>(op));
}

void apply(io::Image& image, AugmentOp op, double argument, const Sampling& sampling) {
  switch (op) {
    case AugmentOp::auto_contrast: return auto_contrast(image);
    case AugmentOp::equalize: return equalize(image);
    case AugmentOp::invert: return invert(image);
    case AugmentOp::rotate: image = rotate(image, argument, sampling); return;
    case AugmentOp::posterize: return posterize(image, static_cast<int>(argument));
    case AugmentOp::solarize: return solarize(image, static_cast<int>(argument));
    case AugmentOp::solarize_add: return solarize_add(image, static_cast<int>(argument));
    case AugmentOp::colour: return enhance_colour(image, argument);
    case AugmentOp::contrast: return enhance_contrast(image, argument);
    case AugmentOp::brightness: return enhance_brightness(image, argument);
    case AugmentOp::sharpness: return enhance_sharpness(image, argument);
    case AugmentOp::shear_x: image = shear_x(image, argument, sampling); return;
    case AugmentOp::shear_y: image = shear_y(image, argument, sampling); return;
    case AugmentOp::translate_x: image = translate_x(image, argument, sampling); return;
    case AugmentOp::translate_y: image = translate_y(image, argument, sampling); return;
  }
  fail(ErrorCode::internal, "data", "unknown augmentation ", static_cast<int>(op));
}

double RandAugment::argument(AugmentOp op, double level, bool negative) const {
  const double part = level / 10, sign = negative ? -1 : 1;
  switch (op) {
    case AugmentOp::rotate: return sign * part * 30;
    case AugmentOp::posterize: return increasing ? 4 - std::floor(part * 4) : std::floor(part * 4);
    case AugmentOp::solarize: {
      const double threshold = std::min(256.0, std::floor(part * 256));
      return increasing ? 256 - threshold : threshold;
    }
    case AugmentOp::solarize_add: return std::min(128.0, std::floor(part * 110));
    case AugmentOp::colour:
    case AugmentOp::contrast:
    case AugmentOp::brightness:
    case AugmentOp::sharpness:
      return increasing ? std::max(0.1, 1 + sign * part * 0.9) : part * 1.8 + 0.1;
    case AugmentOp::shear_x:
    case AugmentOp::shear_y: return sign * part * 0.3;
    case AugmentOp::translate_x:
    case AugmentOp::translate_y: return sign * part * 0.45;
    default: return 0;  // without an argument
  }
}

double RandAugment::level(Random& random) const {
  const double drawn = deviation > 0 ? magnitude + deviation * random.normal() : magnitude;
  return std::clamp(drawn, 0.0, 10.0);
}

void RandAugment::operator()(io::Image& image, std::optional<io::Filter> filter, Colour fill,
                             Random& random) const {
  for (int i = 0; i < operations; ++i) {
    const auto op = static_cast<AugmentOp>(random.below(kAugmentOps));
    if (!random.chance(probability)) continue;
    const double drawn = level(random);
    const bool negative = random.chance(0.5);
    const io::Filter either = random.chance(0.5) ? io::Filter::bicubic : io::Filter::bilinear;
    apply(image, op, argument(op, drawn, negative),
          {.filter = filter.value_or(either), .fill = fill});
  }
}

RandAugment parse_rand_augment(const std::string& text) {
  RandAugment result{.deviation = 0, .increasing = false};
  const auto refuse = [&](const std::string& word) {
    fail("data", "rand_augment: '", word, "' of '", text,
         "' is not understood; written as rand-m9-mstd0.5-inc1 (also n2, p0.5)");
  };
  std::size_t start = 0;
  bool first = true;
  while (start <= text.size()) {
    const std::size_t end = std::min(text.find('-', start), text.size());
    const std::string word = text.substr(start, end - start);
    start = end + 1;
    if (first) {
      if (word != "rand") refuse(word);
      first = false;
      continue;
    }
    const std::size_t digits = word.find_first_of("0123456789.");
    const std::string key = word.substr(0, digits);
    double value = 0;
    const char* last = word.data() + word.size();
    if (digits == std::string::npos ||
        std::from_chars(word.data() + digits, last, value).ptr != last || value < 0) {
      refuse(word);
    }
    if (key == "m" && value <= 10) {
      result.magnitude = value;
    } else if (key == "mstd" && value < 100) {
      result.deviation = value;
    } else if (key == "n" && value <= 100) {
      result.operations = static_cast<int>(value);
    } else if (key == "p" && value <= 1) {
      result.probability = value;
    } else if (key == "inc") {
      result.increasing = value != 0;
    } else {
      refuse(word);
    }
  }
  return result;
}

}  // namespace mhla::data
