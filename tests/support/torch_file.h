// Builds files of torch.save byte by byte, right ones and wrong ones, without PyTorch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mhla::test {

template <typename T>
std::string little(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

struct ZipItem {
  std::string name, bytes;
  std::uint16_t method = 0, flags = 0;
};

inline std::string zip_file(const std::vector<ZipItem>& items, bool in64 = false) {
  using std::uint16_t, std::uint32_t, std::uint64_t;
  std::string file, directory;
  for (const ZipItem& item : items) {
    const auto offset = static_cast<uint32_t>(file.size());
    const auto size = static_cast<uint32_t>(item.bytes.size());
    const std::string common = little(item.flags) + little(item.method) + little(uint32_t{0}) +
                               little(uint32_t{0});  // time, checksum
    const auto name_size = little(static_cast<uint16_t>(item.name.size()));
    file += "PK\x03\x04" + little(uint16_t{20}) + common + little(size) + little(size) + name_size +
            little(uint16_t{0}) + item.name + item.bytes;
    const std::string extra = !in64 ? ""
                                    : little(uint16_t{1}) + little(uint16_t{24}) +
                                          little(uint64_t{size}) + little(uint64_t{size}) +
                                          little(uint64_t{offset});
    const std::string full = little(uint32_t{0xffffffff});
    directory += "PK\x01\x02" + little(uint32_t{20}) + common + (in64 ? full : little(size)) +
                 (in64 ? full : little(size)) + name_size +
                 little(static_cast<uint16_t>(extra.size())) + std::string(10, '\0') +
                 (in64 ? full : little(offset)) + item.name + extra;
  }
  const uint64_t offset = file.size(), bytes = directory.size(), count = items.size();
  file += directory;
  if (in64) {
    const uint64_t end = file.size();
    file += "PK\x06\x06" + little(uint64_t{44}) + std::string(12, '\0') + little(count) +
            little(count) + little(bytes) + little(offset);
    file += "PK\x06\x07" + little(uint32_t{0}) + little(end) + little(uint32_t{1});
  }
  return file + "PK\x05\x06" + little(uint32_t{0}) + little(static_cast<uint16_t>(count)) +
         little(static_cast<uint16_t>(count)) + little(static_cast<uint32_t>(bytes)) +
         little(static_cast<uint32_t>(offset)) + little(uint16_t{0});
}

// Pieces of a pickle: each pushes one value.
namespace pickled {

inline std::string text(std::string_view value) {
  return "X" + little(static_cast<std::uint32_t>(value.size())) + std::string(value);
}
inline std::string integer(std::int64_t value) { return "\x8a\x08" + little(value); }
inline std::string tuple(const std::vector<std::string>& items) {
  std::string all = "(";
  for (const std::string& item : items) all += item;
  return all + "t";
}
inline std::string integers(const std::vector<std::int64_t>& values) {
  std::vector<std::string> items;
  for (const std::int64_t value : values) items.push_back(integer(value));
  return tuple(items);
}
inline std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string all = "}(";
  for (const auto& [key, value] : items) all += text(key) + value;
  return all + "u";
}
inline std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string storage(const std::string& type, const std::string& key, std::int64_t count) {
  return tuple({text("storage"), global("torch", type), text(key), text("cpu"), integer(count)}) +
         "Q";
}
inline std::string tensor(const std::string& storage, std::int64_t offset,
                          const std::vector<std::int64_t>& shape,
                          const std::vector<std::int64_t>& strides) {
  const std::string hooks = global("collections", "OrderedDict") + ")R";
  return global("torch._utils", "_rebuild_tensor_v2") +
         tuple({storage, integer(offset), integers(shape), integers(strides), "\x89", hooks}) + "R";
}

}  // namespace pickled

// `value` pushes what was saved.
inline std::string torch_file(const std::string& value, std::vector<ZipItem> storages = {},
                              bool in64 = false) {
  storages.insert(storages.begin(), {"archive/data.pkl", "\x80\x02" + value + "."});
  storages.push_back({"archive/byteorder", "little"});
  return zip_file(storages, in64);
}

}  // namespace mhla::test
