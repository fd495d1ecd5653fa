// Which entries of the zip file are what, and the tensors as views of their storages.
#include "io/pytorch.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "io/pickle.h"
#include "io/pytorch_walk.h"
#include "io/zip.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

using pickle::Id;
using pickle::Kind;
using pickle::Pickle;
using pickle::Value;

class Archive {
 public:
  explicit Archive(const FilePointer& file) : file_(file->name()), entries_(read_zip(*file)) {
    constexpr std::string_view kPickle = "/data.pkl";
    for (const ZipEntry& entry : entries_) {
      if (!entry.name.ends_with(kPickle)) continue;
      const std::string_view root = entry.name.substr(0, entry.name.size() - kPickle.size());
      if (root.find('/') != std::string_view::npos) continue;
      if (!root_.empty()) refuse("two pickles, one in ", shown(root_), " and one in ", shown(root));
      root_ = root;
    }
    if (root_.empty()) {
      refuse("no entry NAME/data.pkl; a zip file, but not one of torch.save");
    }
    if (find("constants.pkl") != nullptr) {
      refuse(
          "a TorchScript archive holds code; save the weights: torch.save(m.state_dict(), path)");
    }
    for (const ZipEntry& entry : entries_) {
      if (entry.method == 0) continue;
      refuse(
          "entry ", shown(entry.name), " is compressed (method ", entry.method,
          "), which torch.save never does; unpack it and pack it with 'zip -0 -r', or torch.save ",
          "it again");
    }
    const ZipEntry* order = find("byteorder");
    if (order != nullptr && order->bytes != "little") {
      refuse("byte order ", shown(order->bytes),
             ", only 'little' is read; save it on such a machine");
    }
  }

  std::string_view pickle() const { return find("data.pkl")->bytes; }

  const ZipEntry* find(const std::string& name) const {
    const std::string full = std::string(root_) + "/" + name;
    const auto found = std::ranges::lower_bound(entries_, full, {}, &ZipEntry::name);
    return found != entries_.end() && found->name == full ? &*found : nullptr;
  }

 private:
  template <typename... Values>
  [[noreturn]] void refuse(Values&&... values) const {
    fail(ErrorCode::unsupported, "io", "'", file_, "': ", std::forward<Values>(values)...);
  }

  const std::string& file_;
  std::vector<ZipEntry> entries_;
  std::string_view root_;
};

// Turns the arguments of _rebuild_tensor_* into a checked view of a storage.
class TensorMaker {
 public:
  TensorMaker(const std::string& file, const Pickle& pickle, const Archive& archive)
      : file_(file), pickle_(pickle), archive_(archive) {}

  Tensor make(const Value& call, std::string name, std::string section) const {
    Tensor tensor{
        .name = std::move(name), .section = std::move(section), .shape = {}, .strides = {}};
    const auto argument = [&](std::size_t i) -> const Value& { return pickle_[call.items[i]]; };
    const Value& storage = argument(0);
    if (storage.kind != Kind::storage || argument(1).kind != Kind::integer) {
      corrupt(tensor, "expected a storage and an offset");
    }
    const bool named = call.kind == Kind::tensor_3;
    tensor.type = type_of(tensor, storage, named ? &argument(6) : nullptr);
    const std::size_t usual = named ? 7 : 6;
    if (call.items.size() > usual && argument(usual).kind != Kind::none &&
        !argument(usual).items.empty()) {
      fail(ErrorCode::unsupported, "io", "'", file_, "': tensor ", shown(tensor.name),
           ": lazily conjugated or negated; save tensor.resolve_conj().resolve_neg()");
    }
    tensor.shape = integers(tensor, argument(2));
    tensor.strides = integers(tensor, argument(3));
    const std::string_view bytes = storage_bytes(tensor, storage);
    tensor.data = bytes.data() + checked_offset(tensor, argument(1).number, bytes.size());
    return tensor;
  }

 private:
  template <typename... Values>
  [[noreturn]] void corrupt(const Tensor& tensor, Values&&... values) const {
    fail(ErrorCode::corrupt_data, "io", "'", file_, "': tensor ", shown(tensor.name), ": ",
         std::forward<Values>(values)..., "; the file is damaged, download or save it again");
  }

  ScalarType type_of(const Tensor& tensor, const Value& storage, const Value* dtype) const {
    if (dtype != nullptr && dtype->kind != Kind::dtype) corrupt(tensor, "expected a dtype");
    const std::int64_t type = dtype != nullptr ? dtype->number : pickle_[storage.items[0]].number;
    if (type < 0) corrupt(tensor, "neither tensor nor storage has a dtype");
    return static_cast<ScalarType>(type);
  }

  Shape integers(const Tensor& tensor, const Value& tuple) const {
    if (tuple.kind != Kind::tuple || tuple.items.size() > kMaxRank) {
      corrupt(tensor, "expected a tuple of at most ", kMaxRank, " sizes or strides");
    }
    Shape numbers;
    for (const Id id : tuple.items) {
      if (pickle_[id].kind != Kind::integer)
        corrupt(tensor, "expected integers as shape and strides");
      numbers.push_back(pickle_[id].number);
    }
    return numbers;
  }

  std::string_view storage_bytes(const Tensor& tensor, const Value& storage) const {
    const std::string key(pickle_[storage.items[1]].text);
    const std::int64_t type = pickle_[storage.items[0]].number,
                       count = pickle_[storage.items[3]].number;
    const ZipEntry* entry = archive_.find("data/" + key);
    if (entry == nullptr) corrupt(tensor, "its storage ", shown(key), " is not in the zip file");
    const std::uint64_t width = type < 0 ? 1 : size_of(static_cast<ScalarType>(type));
    const std::uint64_t bytes = entry->bytes.size();
    if (count < 0 || bytes % width != 0 || static_cast<std::uint64_t>(count) != bytes / width) {
      corrupt(tensor, "its storage ", shown(key), " of ", count, " elements of ", width,
              " bytes has ", bytes, " bytes");
    }
    return entry->bytes;
  }

  // Where the first element lies. Every element lies inside of the storage, and no element is
  // counted more often than the storage has elements: an expanded tensor could claim any size.
  std::uint64_t checked_offset(const Tensor& tensor, std::int64_t offset,
                               std::uint64_t available) const {
    const Extent extent = checked_extent(file_, tensor.name, tensor.shape, tensor.type);
    const auto width = static_cast<std::int64_t>(size_of(tensor.type));
    const std::int64_t elements = static_cast<std::int64_t>(available) / width;
    if (tensor.strides.size() != tensor.shape.size()) {
      corrupt(tensor, tensor.shape.size(), " sizes, but ", tensor.strides.size(), " strides");
    }
    std::int64_t last = offset;
    bool outside = offset < 0 || offset > elements;
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      std::int64_t reach = 0;
      outside = outside || tensor.strides[i] < 0 ||
                (extent.elements > 0 &&
                 (__builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &reach) ||
                  __builtin_add_overflow(last, reach, &last)));
    }
    if (outside || (extent.elements > 0 && last >= elements)) {
      corrupt(tensor, "shape ", to_string(tensor.shape), ", strides ", to_string(tensor.strides),
              ", offset ", offset, " leave its storage of ", elements, " elements");
    }
    if (extent.elements > elements) {
      fail(ErrorCode::unsupported, "io", "'", file_, "': tensor ", shown(tensor.name), ": shape ",
           to_string(tensor.shape), " repeats a storage of ", elements,
           " elements; save tensor.contiguous()");
    }
    return extent.elements == 0 ? 0 : static_cast<std::uint64_t>(offset * width);
  }

  const std::string& file_;
  const Pickle& pickle_;
  const Archive& archive_;
};

}  // namespace

Checkpoint read_pytorch(const FilePointer& file) {
  const std::string& name = file->name();
  const Archive archive(file);
  const Pickle pickle = pickle::parse(archive.pickle(), name);
  const TensorMaker maker(name, pickle, archive);
  std::vector<Tensor> tensors;
  std::uint64_t bytes = 0;
  const auto add = [&](const Value& call, std::string tensor, std::string section) {
    tensors.push_back(maker.make(call, std::move(tensor), std::move(section)));
    // Tied weights may share a storage. A file that claims many times its size wants our memory.
    constexpr std::uint64_t kMostShared = 64;
    bytes += tensors.back().bytes();
    if (bytes / kMostShared > file->bytes().size()) {
      fail(ErrorCode::corrupt_data, "io", "'", name, "': its tensors claim ", bytes,
           " bytes in a file of ", file->bytes().size(),
           "; save it again with tensors of their own");
    }
  };
  Metadata metadata = pickle::walk(pickle, name, add);
  return {name, "pytorch", {file}, std::move(tensors), std::move(metadata)};
}

}  // namespace mhla::io
