// Fuzzes data sets: IDX, CIFAR and tar files of pictures. Each is refused, or every picture of it
// has a class and either decodes or is named.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "data/image_set.h"
#include "fuzz/check.h"
#include "mhla/error.h"

namespace {

namespace fs = std::filesystem;

// In memory where there is such a place.
fs::path make_folder() {
  std::string pattern = (fs::exists("/dev/shm") ? "/dev/shm" : "/tmp") +
                        std::string("/mhla-fuzz-XXXXXX");
  MHLA_FUZZ_CHECK(mkdtemp(pattern.data()) != nullptr);
  static const fs::path made = pattern;
  std::atexit([] { fs::remove_all(made); });
  return made;
}

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// The first byte chooses the format. Of IDX it also says how much belongs to the labels.
std::string write_set(const fs::path& folder, const std::string& bytes) {
  for (const auto& entry : fs::directory_iterator(folder)) fs::remove_all(entry.path());
  const auto first = bytes.empty() ? 0U : static_cast<unsigned char>(bytes[0]);
  const std::string rest = bytes.empty() ? "" : bytes.substr(1);
  if (first % 3 == 0) {
    const std::size_t labels = std::min<std::size_t>(first / 3, rest.size());
    write(folder / "train-labels-idx1-ubyte", rest.substr(0, labels));
    write(folder / "train-images-idx3-ubyte", rest.substr(labels));
  } else if (first % 3 == 1) {
    write(folder / "train.bin", rest);
    write(folder / "fine_label_names.txt", rest.substr(0, 100));
  } else {
    write(folder / "set.tar", rest);
    return (folder / "set.tar").string();
  }
  return folder.string();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fs::path folder = make_folder();
  mhla::data::ImageSource source;
  source.path = write_set(folder, std::string(reinterpret_cast<const char*>(data), size));
  try {
    const auto set = mhla::data::open_image_set(source);
    MHLA_FUZZ_CHECK(set->size() >= 1);
    for (std::int64_t i = 0; i < set->size(); ++i) {
      const std::int64_t target = set->target(i);
      MHLA_FUZZ_CHECK(target >= 0 && target < static_cast<std::int64_t>(set->classes().size()));
      try {
        MHLA_FUZZ_CHECK(set->picture(i).width() > 0);
      } catch (const mhla::Error& error) {
        MHLA_FUZZ_CHECK(std::string(error.what()).find(set->name(i)) != std::string::npos);
      }
    }
  } catch (const mhla::Error& error) {
    MHLA_FUZZ_CHECK(std::string(error.what()).find(folder.string()) != std::string::npos);
  }
  return 0;
}
