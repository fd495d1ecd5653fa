// `mhla data`: what is in a data set of pictures, and what the augmentations make of it.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "cli/table.h"
#include "data/image_batches.h"
#include "mhla/core/text.h"

namespace mhla::cli {
namespace {

struct Flags {
  std::string what, path, split = "train", out, augment = "recipe", on_error = "stop";
  int image_size = 0, count = 8, copies = 8, workers = -1;
  std::uint64_t seed = 0;
  bool json = false, check = false;
};

data::ImageSource source_of(const Flags& flags) {
  data::ImageSource source;
  source.path = flags.path;
  source.split = flags.split;
  source.seed = flags.seed;
  if (flags.image_size > 0) source.image_size = flags.image_size;
  return source;
}

struct Found {
  std::map<std::pair<int, int>, std::int64_t> sizes;  // width and height
  std::vector<std::int64_t> counts;                   // by class
  std::vector<std::string> errors;
  std::int64_t decoded = 0;
};

// All targets; the pictures too, when asked for, else some spread over the set.
Found look(const data::ImageSet& set, bool all) {
  constexpr std::int64_t kSome = 100;
  Found found;
  found.counts.resize(set.classes().size());
  const std::int64_t step = all ? 1 : std::max<std::int64_t>(1, set.size() / kSome);
  for (std::int64_t i = 0; i < set.size(); ++i) {
    ++found.counts.at(static_cast<std::size_t>(set.target(i)));
    if (i % step != 0) continue;
    try {
      const io::Image image = set.picture(i);
      ++found.sizes[{image.width(), image.height()}];
      ++found.decoded;
    } catch (const Error& error) {
      found.errors.push_back(plain_message(error.what()));
    }
  }
  return found;
}

std::string size_text(const Found& found) {
  if (found.sizes.empty()) return "none readable";
  const auto text = [](const auto& size) {
    return std::to_string(size.first) + "x" + std::to_string(size.second);
  };
  if (found.sizes.size() == 1) return text(found.sizes.begin()->first);
  const auto& low = found.sizes.begin()->first;
  const auto& high = found.sizes.rbegin()->first;
  return std::to_string(found.sizes.size()) + " sizes, from " + text(low) + " to " + text(high);
}

void info(const Flags& flags) {
  const std::unique_ptr<data::ImageSet> set = data::open_image_set(source_of(flags));
  const Found found = look(*set, flags.check);
  if (flags.json) {
    nlohmann::json classes = nlohmann::json::array(), sizes = nlohmann::json::array();
    for (std::size_t i = 0; i < found.counts.size(); ++i) {
      classes.push_back({{"name", set->classes()[i]}, {"samples", found.counts[i]}});
    }
    for (const auto& [size, count] : found.sizes) {
      sizes.push_back({{"width", size.first}, {"height", size.second}, {"pictures", count}});
    }
    std::cout << nlohmann::json({{"format", set->format()},
                                 {"split", flags.split},
                                 {"samples", set->size()},
                                 {"decoded", found.decoded},
                                 {"errors", found.errors},
                                 {"sizes", sizes},
                                 {"classes", classes}})
                     // Names of folders need not be UTF-8.
                     .dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
              << "\n";
  } else {
    std::cout << set->format() << ", " << flags.split << ": " << set->size() << " pictures in "
              << set->classes().size() << " classes, " << size_text(found) << " (" << found.decoded
              << " decoded)\n";
    Table table;
    table.row({"label", "class", "pictures"});
    for (std::size_t i = 0; i < found.counts.size(); ++i) {
      table.row({std::to_string(i), set->classes()[i], std::to_string(found.counts[i])});
    }
    std::cout << table.text();
    for (const std::string& error : found.errors) std::cout << "unreadable: " << error << "\n";
  }
  if (!found.errors.empty()) throw Failed{};
}

data::Augmentation augmentation_of(const Flags& flags, int image_size) {
  if (flags.augment == "recipe") return data::Augmentation::recipe();
  if (flags.augment == "light") return data::Augmentation::light(image_size);
  if (flags.augment == "none") return data::Augmentation::none();
  data::Augmentation result = data::Augmentation::none();
  result.rand_augment = data::parse_rand_augment(flags.augment);
  return result;
}

// The first column shows pictures as evaluation sees them, the others as training does.
void preview(const Flags& flags) {
  if (flags.out.empty()) fail("data", "preview: --out is needed, the picture to write");
  if (flags.count < 1 || flags.copies < 1 || flags.count > 1000 || flags.copies > 1000) {
    fail("data", "preview: expected 1 to 1000 rows and columns, got ", flags.count, " and ",
         flags.copies);
  }
  io::image_format_of_name(flags.out);  // before the work, not after it
  const std::shared_ptr<const data::ImageSet> set = data::open_image_set(source_of(flags));
  const auto size_of_all = set->picture_size();
  const int size = flags.image_size > 0                                       ? flags.image_size
                   : size_of_all && size_of_all->width == size_of_all->height ? size_of_all->width
                                                                              : 224;
  const data::Normalisation normalisation;
  const data::Normaliser normaliser(normalisation);
  const data::TrainTransform train(augmentation_of(flags, size), size, normalisation);
  const bool same = size_of_all == data::ImageSize{size, size};
  const data::EvalTransform eval(size, same ? 1 : 0.875, io::Filter::bicubic, normalisation);

  constexpr int kGap = 2;
  const int columns = flags.copies + 1, step = size + kGap;
  io::Image sheet(columns * step + kGap, flags.count * step + kGap, 255, 255, 255);
  std::vector<float> planes(std::size_t{3} * size * size);
  data::Random order(flags.seed);
  for (int row = 0; row < flags.count; ++row) {
    const std::int64_t index = order.below(set->size());
    const io::Image original = set->picture(index);
    std::cout << "row " << row << ": "
              << set->classes()[static_cast<std::size_t>(set->target(index))] << ", "
              << set->name(index) << "\n";
    for (int column = 0; column < columns; ++column) {
      data::Random random(flags.seed, static_cast<std::uint64_t>(row),
                          static_cast<std::uint64_t>(column));
      if (column == 0) {
        eval(original.view(), planes.data());
      } else {
        train(original.view(), random, planes.data());
      }
      const io::Image tile = normaliser.picture(planes.data(), size, size);
      for (int y = 0; y < size; ++y) {
        std::memcpy(sheet.row(kGap + row * step + y) + std::ptrdiff_t{3} * (kGap + column * step),
                    tile.row(y), 3 * static_cast<std::size_t>(size));
      }
    }
  }
  io::write_image(flags.out, sheet.view());
}

// Batches for about two seconds after the first, by the loader that training uses.
void speed(const Flags& flags) {
  data::ImageLoaderOptions options;
  options.source = source_of(flags);
  options.train = flags.split == "train";
  options.batch = 256;
  options.workers = flags.workers;
  options.seed = flags.seed;
  options.drop_last = false;
  options.on_error = flags.on_error == "skip" ? data::OnError::skip : data::OnError::stop;
  const std::shared_ptr<const data::ImageSet> set = data::open_image_set(options.source);
  const auto size = set->picture_size();
  options.image_size = flags.image_size > 0 ? flags.image_size : size ? size->width : 224;
  options.augmentation = augmentation_of(flags, options.image_size);
  data::ImageBatches batches(set, options, [&](std::int64_t samples) {
    return data::plain_memory(samples, options.image_size);
  });
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  batches.next();
  std::int64_t samples = 0;
  const auto start = Clock::now();
  const std::clock_t busy = std::clock();  // of all threads
  while (samples == 0 || seconds_since(start) < 2) samples += batches.next().samples;
  const double busy_seconds = static_cast<double>(std::clock() - busy) / CLOCKS_PER_SEC;
  const double rate = static_cast<double>(samples) / seconds_since(start);
  const double per_core = static_cast<double>(samples) / busy_seconds;
  if (flags.json) {
    std::cout << nlohmann::json({{"images_per_second", rate},
                                 {"images_per_core_second", per_core},
                                 {"image_size", options.image_size},
                                 {"augment", options.train ? flags.augment : "evaluation"}})
                     .dump(2)
              << "\n";
    return;
  }
  std::printf("%.0f pictures a second of %d px, %.0f per second of a core, %s\n", rate,
              options.image_size, per_core, options.train ? flags.augment.c_str() : "evaluation");
}

void run_data(const Flags& flags) {
  const std::vector<std::string> known{"info", "preview", "speed"};
  if (flags.on_error != "stop" && flags.on_error != "skip") {
    fail("data", "--on_error: unknown '", flags.on_error, "'; known: stop, skip");
  }
  if (flags.what == "info") return info(flags);
  if (flags.what == "preview") return preview(flags);
  if (flags.what == "speed") return speed(flags);
  const std::string hint = nearest(flags.what, known);
  fail("data", "unknown '", flags.what, "'",
       hint.empty() ? "; known: info, preview, speed" : ": did you mean '" + hint + "'?");
}

}  // namespace

void add_data(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "data", "Look into data sets of pictures, and at their augmentation");
  auto flags = std::make_shared<Flags>();
  command
      ->add_option("what", flags->what,
                   "info: classes and sizes; preview: a sheet of augmented pictures; speed: "
                   "pictures a second")
      ->required()
      ->type_name("info|preview|speed");
  command
      ->add_option(
          "path", flags->path,
          "CIFAR, IDX (MNIST) or class folders, also in a .tar.gz; 'relations' is built in")
      ->required()
      ->type_name("PATH");
  command->add_option("--split", flags->split, "Which part of it")->type_name("train|val|test");
  command->add_option("--out", flags->out, "preview: the sheet to write, .png or .jpg")
      ->type_name("FILE");
  command
      ->add_option("--augment", flags->augment,
                   "recipe, light, none, or RandAugment alone as in rand-m9-mstd0.5-inc1")
      ->type_name("NAME");
  command
      ->add_option("--image_size", flags->image_size, "In pixels; default: as in the set, or 224")
      ->type_name("PIXELS")
      ->check(not_negative());
  command->add_option("--count", flags->count, "preview: how many pictures, one a row")
      ->type_name("COUNT");
  command->add_option("--copies", flags->copies, "preview: how often each is augmented")
      ->type_name("COUNT");
  command
      ->add_option("--workers", flags->workers,
                   "speed: threads; -1 takes three quarters of the cores")
      ->type_name("COUNT");
  command->add_option("--seed", flags->seed, "Of everything random")->type_name("NUMBER");
  command->add_option("--on_error", flags->on_error, "speed: what an unreadable picture does")
      ->type_name("stop|skip");
  command->add_flag("--check", flags->check, "info: decode every picture, not only some");
  command->add_flag("--json", flags->json, "Print one JSON document");
  command->footer(
      "Example: mhla data preview relations --out sheet.png --augment light\n"
      "Exit code 1 when a picture is unreadable.");
  command->callback([flags] { run_data(*flags); });
}

}  // namespace mhla::cli
