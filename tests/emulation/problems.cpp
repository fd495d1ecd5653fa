// The problems that are emulated unasked.
#include "problems.h"

namespace {

std::vector<std::string> dense() {
  return {
      // The kernel of whole heads of 129 to 256 tokens, every width.
      "grid=16x16 block=4x4 heads=2 dk=32 dv=32 dtype=bf16",
      "grid=16x16 block=4x4 heads=3 batch=2 dk=64 dv=64 dtype=bf16",
      "grid=16x16 block=4x4 heads=1 dk=72 dv=72 dtype=bf16",
      "grid=16x16 block=4x4 heads=2 dk=96 dv=96 dtype=bf16",
      "grid=14x14 blocks=4x4 heads=5 dk=64 dv=64 dtype=bf16",
      // The kernel of tiles.
      "sequence=300 block=40 heads=1 dk=64 dv=64 dtype=bf16",
      "sequence=70 block=24 heads=2 dk=96 dv=96 dtype=bf16",
  };
}

}  // namespace

std::vector<std::string> problems(const std::string& implementation) {
  if (implementation == "cuda.dense") return dense();
  return {};
}
