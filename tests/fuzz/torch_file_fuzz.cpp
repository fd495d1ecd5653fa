// Fuzzes the reader of torch.save's files, as zip files and as pickles packed into a right one.
#include <cstddef>
#include <cstdint>
#include <string>

#include "fuzz/checkpoint_exercise.h"
#include "support/torch_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  mhla::fuzz::read_checkpoint(bytes);
  mhla::fuzz::read_checkpoint(mhla::test::zip_file(
      {{"archive/data.pkl", bytes}, {"archive/data/0", std::string(64, 'x')}}));
  return 0;
}
