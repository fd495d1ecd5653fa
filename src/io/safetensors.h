// The safetensors format: 8 bytes of header length, a JSON header, then the tensors' bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint.h"

namespace mhla::io {

// As upstream: a longer header is refused before it is read.
constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

Checkpoint read_safetensors(const FilePointer& file);

// model.safetensors.index.json and the shards beside it. A shard's name must be a plain file name,
// and the file must lie in the index's folder, also after following links. (The cache of Hugging
// Face links index and shards into one folder of blobs: that is allowed.)
Checkpoint open_sharded(const std::string& index_path);

struct SaveOptions {
  Metadata metadata{};               // {"format": "pt"} is what Python's loaders look for
  std::uint64_t max_file_bytes = 0;  // of tensors in one file; 0: never split
  // Floating tensors are rounded to it while they are written, piece by piece: f64, f32, f16, bf16.
  std::optional<ScalarType> precision{};
  std::vector<std::string> keep{};  // files that must not be replaced: what is being read
};

struct Saved {
  std::vector<std::string> files;  // the one to open first, then the others
  std::uint64_t tensors = 0, bytes = 0;
  std::uint64_t converted = 0;   // tensors of another precision than before
  std::uint64_t overflowed = 0;  // finite elements that became infinite
};

// Writes to a temporary file, flushes it to the disk and renames it: a crash leaves the old file.
// `strides` are honoured, `section` is ignored. When the tensors need more than one file, `path`
// "dir/model.safetensors" becomes model-00001-of-00003.safetensors and so on, with
// model.safetensors.index.json written last.
Saved write_safetensors(const std::string& path, const std::vector<Tensor>& tensors,
                        const SaveOptions& options = {});
// The same; returns the paths written.
std::vector<std::string> save_safetensors(const std::string& path,
                                          const std::vector<Tensor>& tensors,
                                          const SaveOptions& options = {});

}  // namespace mhla::io
