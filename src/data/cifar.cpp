// CIFAR-10 and CIFAR-100 in their binary form, packed or not.
#include <exception>
#include <filesystem>
#include <thread>

#include "data/raw_images.h"
#include "io/compressed.h"
#include "mhla/error.h"

namespace mhla::data {
namespace {

constexpr int kSide = 32;
constexpr std::size_t kPlane = kSide * kSide;

struct Form {
  std::string format;
  std::size_t labels;  // bytes before the picture, of which the last counts
  std::vector<std::string> files;
  std::vector<std::string> class_files;
  std::size_t classes;
};

Form form_of(const std::string& folder, bool train) {
  const bool hundred = find_packed(folder, "data_batch_1.bin").empty() &&
                       find_packed(folder, "test_batch.bin").empty();
  if (hundred) {
    return {"cifar100", 2, {train ? "train.bin" : "test.bin"}, {"fine_label_names.txt"}, 100};
  }
  Form form{"cifar10", 1, {}, {"batches.meta.txt"}, 10};
  if (!train) form.files = {"test_batch.bin"};
  for (int i = 1; train && i <= 5; ++i) {
    form.files.push_back("data_batch_" + std::to_string(i) + ".bin");
  }
  return form;
}

// Unpacking takes seconds a file, so each has a thread.
std::vector<std::string> read_all(const std::vector<std::string>& paths) {
  std::vector<std::string> contents(paths.size());
  std::vector<std::exception_ptr> errors(paths.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        contents[i] = io::read_unpacked(paths[i], std::size_t{1} << 30);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return contents;
}

void append(RawImages& raw, const std::string& records, std::size_t labels) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(records.data());
  const std::size_t each = labels + 3 * kPlane, count = records.size() / each;
  for (std::size_t i = 0; i < count; ++i, bytes += each) {
    raw.targets.push_back(bytes[labels - 1]);
    const std::uint8_t* planes = bytes + labels;
    const std::size_t start = raw.pixels.size();
    raw.pixels.resize(start + 3 * kPlane);
    std::uint8_t* to = raw.pixels.data() + start;
    for (std::size_t p = 0; p < kPlane; ++p) {
      for (std::size_t c = 0; c < 3; ++c) to[3 * p + c] = planes[c * kPlane + p];
    }
  }
}

}  // namespace

bool is_cifar(const std::string& folder) {
  for (const char* name : {"data_batch_1.bin", "test_batch.bin", "train.bin", "test.bin"}) {
    if (!find_packed(folder, name).empty()) return true;
  }
  return false;
}

std::unique_ptr<ImageSet> open_cifar(const std::string& folder, bool train) {
  const Form form = form_of(folder, train);
  std::vector<std::string> paths;
  for (const std::string& file : form.files) {
    paths.push_back(find_packed(folder, file));
    if (paths.back().empty()) {
      fail(ErrorCode::io, "data", "'", folder, "' has no ", file, " (nor .xz, .gz of it)");
    }
  }
  RawImages raw{.format = form.format,
                .where = folder,
                .width = kSide,
                .height = kSide,
                .pixels = {},
                .targets = {},
                .classes = {}};
  const std::vector<std::string> contents = read_all(paths);
  const std::size_t each = form.labels + 3 * kPlane;
  std::size_t total = 0;
  for (std::size_t i = 0; i < contents.size(); ++i) {
    if (contents[i].size() % each != 0 || contents[i].empty()) {
      fail(ErrorCode::corrupt_data, "data", paths[i], ": ", contents[i].size(),
           " bytes are no whole number of records of ", each);
    }
    total += contents[i].size() / each;
  }
  raw.pixels.reserve(total * 3 * kPlane);
  for (const std::string& content : contents) append(raw, content, form.labels);
  for (const std::string& file : form.class_files) {
    raw.classes = read_lines((std::filesystem::path(folder) / file).string());
  }
  for (std::size_t i = raw.classes.size(); i < form.classes; ++i) {
    raw.classes.push_back(std::to_string(i));
  }
  return make_raw_images(std::move(raw));
}

}  // namespace mhla::data
