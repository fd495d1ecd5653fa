// Checkpoints of every format behind one interface: safetensors, sharded or not, and PyTorch's
// .pth.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/file_bytes.h"
#include "io/tensor.h"

namespace mhla::io {

using Metadata = std::map<std::string, std::string>;

// Opening reads names, types and shapes; the tensors' bytes stay in the mapped file until used.
// Copies are cheap in bytes: they share the mapping. A malformed file throws mhla::Error with
// ErrorCode::corrupt_data, a well-formed one that is not supported ErrorCode::unsupported.
class Checkpoint {
 public:
  // A file of any format, told by its content; a sharded index (*.index.json), or a folder that
  // holds model.safetensors, its index or the names that diffusers and transformers use.
  static Checkpoint open(const std::string& path);
  // One file that is in memory already; an index cannot be opened this way.
  static Checkpoint read(const FilePointer& file);

  const std::string& path() const { return path_; }
  const std::string& format() const { return format_; }             // "safetensors", "pytorch"
  const std::vector<Tensor>& tensors() const& { return tensors_; }  // in the order of the file
  // safetensors: __metadata__. pytorch: numbers and texts beside the tensors ("epoch": "3").
  const Metadata& metadata() const& { return metadata_; }
  // What a person should know: shards that hold more than the index lists, and so on.
  const std::vector<std::string>& notes() const& { return notes_; }
  // `for (... : Checkpoint::open(path).tensors())` would walk through freed memory.
  void tensors() const&& = delete;
  void metadata() const&& = delete;
  void notes() const&& = delete;
  std::uint64_t bytes() const;                  // of all tensors
  std::vector<std::string> file_names() const;  // what was opened: index and shards, or one file

  const Tensor* find(std::string_view name) const;
  const Tensor& at(std::string_view name) const;  // throws, naming the nearest

  // Names of the nested dictionaries that hold tensors: "model", "ema", "opt.state.0".
  std::vector<std::string> sections() const;
  // What hangs below `name`, without that prefix; throws, listing the sections, if there is none.
  Checkpoint section(const std::string& name) const;
  // The section that holds the weights: the averaged ones where present (ema, model_ema, ...), else
  // model, state_dict, ...; the whole file where it has none of these. notes() says which.
  Checkpoint weights() const;

  // Keeps the bytes of its tensors alive; for tensors that share the mapping.
  const FilePointer& file_of(const Tensor& tensor) const;

  // For the readers of the formats: `tensors` must lie in `files`, their names must differ.
  Checkpoint(std::string path, std::string format, std::vector<FilePointer> files,
             std::vector<Tensor> tensors, Metadata metadata, std::vector<std::string> notes = {});

 private:
  std::string path_, format_;
  std::vector<FilePointer> files_;
  std::vector<Tensor> tensors_;
  std::vector<std::size_t> by_name_;  // sorted, not hashed: names may be chosen to collide
  Metadata metadata_;
  std::vector<std::string> notes_;
};

}  // namespace mhla::io
