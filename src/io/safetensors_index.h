// The index of a sharded checkpoint, before any shard is opened.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "io/safetensors.h"

namespace mhla::io {

struct ShardIndex {
  std::map<std::string, std::string> shards;  // tensor -> file name, as the index has it
  Metadata metadata;
};

ShardIndex read_shard_index(const FilePointer& file);
// No folders, nothing that means one, no zero byte.
bool is_plain_file_name(std::string_view name);

}  // namespace mhla::io
