// Fuzzes the reader of safetensors files, as they come, with the header's length put right, and as
// the index of a sharded checkpoint.
#include <cstddef>
#include <cstdint>
#include <string>

#include "fuzz/checkpoint_exercise.h"
#include "io/safetensors_index.h"
#include "support/torch_file.h"

namespace {

void read_index(const std::string& bytes) {
  try {
    const auto file = mhla::io::FileBytes::copy("fuzzed.file", bytes);
    const mhla::io::ShardIndex index = mhla::io::read_shard_index(file);
    for (const auto& [tensor, shard] : index.shards) {
      MHLA_FUZZ_CHECK(mhla::io::is_utf8(tensor));
      if (!mhla::io::is_plain_file_name(shard)) continue;
      MHLA_FUZZ_CHECK(shard.find('/') == std::string::npos && shard != "..");
    }
  } catch (const mhla::Error& error) {
    mhla::fuzz::check_error(error);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  mhla::fuzz::read_checkpoint(bytes);
  mhla::fuzz::read_checkpoint(mhla::test::little(std::uint64_t{size}) + bytes +
                              std::string(64, 'x'));
  read_index(bytes);
  return 0;
}
