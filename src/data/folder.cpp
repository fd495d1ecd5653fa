// Pictures in folders named after their classes, on the disk or inside a tar file.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <mutex>

#include "data/image_set.h"
#include "io/compressed.h"
#include "io/file_bytes.h"
#include "io/tar.h"
#include "mhla/error.h"

namespace mhla::data {
namespace {

namespace fs = std::filesystem;

struct Entry {
  std::string name;        // path in the folder or archive: "train/dog/1.png"
  std::string_view bytes;  // of an archive
  std::int64_t target = 0;
};

bool is_picture(const std::string& name) {
  std::string ending = fs::path(name).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

// A link to a folder that it lies in: its pictures would come again and again.
bool leads_back(const fs::directory_entry& entry) {
  if (!entry.is_symlink() || !entry.is_directory()) return false;
  const fs::path target = fs::canonical(entry.path());
  const fs::path from = fs::canonical(entry.path().parent_path());
  return std::mismatch(target.begin(), target.end(), from.begin(), from.end()).first ==
         target.end();
}

std::vector<Entry> list_folder(const std::string& folder) {
  std::vector<Entry> entries;
  for (fs::recursive_directory_iterator it(folder, fs::directory_options::follow_directory_symlink),
       end;
       it != end; ++it) {
    // Two links may lead to each other's folders, which the depth ends.
    if (it.depth() > 16 || leads_back(*it)) it.disable_recursion_pending();
    if (!it->is_directory() && is_picture(it->path().string())) {
      entries.push_back({it->path().lexically_relative(folder).generic_string(), {}, 0});
    }
  }
  return entries;
}

// "./a//b" as "a/b".
std::string plain(const std::string& name) {
  return fs::path(name).lexically_normal().generic_string();
}

// The folders of a split, by their usual names.
bool in_split(const std::string& first, bool train) {
  if (train) return first == "train";
  return first == "val" || first == "test" || first == "valid" || first == "validation";
}

// What is below the split's folder, without it: "dog/1.png". Archives and folders may have one more
// level on top (imagenet/train/...), and a folder without splits is one set of classes.
struct Splits {
  bool any = false;
  std::size_t depth = 0;  // parts in front of the class
};

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts;
  for (const fs::path& part : fs::path(name)) parts.push_back(part.string());
  return parts;
}

Splits find_splits(const std::vector<Entry>& entries) {
  for (std::size_t depth = 0; depth < 2; ++depth) {
    for (const Entry& entry : entries) {
      const std::vector<std::string> parts = parts_of(entry.name);
      if (parts.size() < depth + 3) continue;
      if (in_split(parts[depth], true) || in_split(parts[depth], false)) return {true, depth + 1};
    }
  }
  return {};
}

class Folder final : public ImageSet {
 public:
  Folder(const ImageSource& source, bool train) : where_(source.path), limit_(source.cache_bytes) {
    std::vector<Entry> all;
    if (fs::is_directory(where_)) {
      all = list_folder(where_);
    } else {
      archive_ = io::read_unpacked(where_);
      if (!io::looks_like_tar(archive_)) {
        fail(ErrorCode::corrupt_data, "data", where_,
             ": neither a folder nor a tar file of pictures");
      }
      for (const io::TarFile& file : io::read_tar(archive_, where_)) {
        if (is_picture(file.name)) all.push_back({plain(file.name), file.bytes, 0});
      }
    }
    choose(std::move(all), train);
    cache_.resize(entries_.size());
  }
  std::string format() const override { return archive_.empty() ? "folder" : "tar"; }
  std::int64_t size() const override { return static_cast<std::int64_t>(entries_.size()); }
  std::int64_t target(std::int64_t index) const override { return at(index).target; }
  std::string name(std::int64_t index) const override { return where_ + "/" + at(index).name; }
  std::optional<ImageSize> picture_size() const override { return {}; }

  io::Image picture(std::int64_t index) const override {
    const auto i = static_cast<std::size_t>(index);
    if (const std::shared_ptr<const io::Image> kept = cached(i)) return *kept;
    const Entry& entry = at(index);
    io::Image image = archive_.empty() ? io::read_image(name(index))
                                       : io::decode_image(entry.bytes, name(index));
    const auto bytes = static_cast<std::int64_t>(image.pixels().size());
    if (!has_room(bytes)) return image;
    auto copy = std::make_shared<const io::Image>(image);
    const std::lock_guard lock(mutex_);
    if (!cache_[i] && cached_bytes_ + bytes <= limit_) {
      cache_[i] = std::move(copy);
      cached_bytes_ += bytes;
    }
    return image;
  }

 private:
  const Entry& at(std::int64_t index) const { return entries_.at(static_cast<std::size_t>(index)); }

  // Copied outside of the lock, which all workers share.
  std::shared_ptr<const io::Image> cached(std::size_t i) const {
    const std::lock_guard lock(mutex_);
    return cache_.at(i);
  }

  bool has_room(std::int64_t bytes) const {
    const std::lock_guard lock(mutex_);
    return cached_bytes_ + bytes <= limit_;
  }

  // Keeps the split's entries, in the order of their names, and numbers the classes: by the order
  // of the names of all splits' folders, so that training and evaluation agree.
  void choose(std::vector<Entry> all, bool train) {
    const Splits splits = find_splits(all);
    std::map<std::string, std::int64_t> classes;
    std::vector<std::pair<Entry, std::string>> kept;
    for (Entry& entry : all) {
      const std::vector<std::string> parts = parts_of(entry.name);
      if (parts.size() < splits.depth + 2) continue;  // not inside a class
      const std::string& split = splits.any ? parts[splits.depth - 1] : parts[0];
      if (splits.any && !in_split(split, true) && !in_split(split, false)) continue;
      const std::string& name = parts[splits.depth];
      classes.emplace(name, 0);
      if (!splits.any || in_split(split, train)) kept.emplace_back(std::move(entry), name);
    }
    if (kept.empty()) {
      fail(ErrorCode::io, "data", "'", where_, "' holds no PNG or JPEG pictures in ",
           splits.any ? (train ? "train/CLASS" : "val/CLASS") : "folders of classes");
    }
    std::int64_t number = 0;
    for (auto& [name, target] : classes) {
      target = number++;
      classes_.push_back(name);
    }
    std::sort(kept.begin(), kept.end(),
              [](const auto& a, const auto& b) { return a.first.name < b.first.name; });
    for (auto& [entry, name] : kept) {
      entry.target = classes.at(name);
      entries_.push_back(std::move(entry));
    }
  }

  std::string where_, archive_;
  std::int64_t limit_;
  std::vector<Entry> entries_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const io::Image>> cache_;
  mutable std::int64_t cached_bytes_ = 0;
};

}  // namespace

std::unique_ptr<ImageSet> open_folder(const ImageSource& source, bool train) {
  return std::make_unique<Folder>(source, train);
}

}  // namespace mhla::data
