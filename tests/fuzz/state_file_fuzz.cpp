// Fuzzes the reader of state files, as they come and with the checksum put right.
//
// Without the second way nearly every input would end at the checksum; an attacker's would not.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "fuzz/check.h"
#include "mhla/core/state_file.h"
#include "mhla/error.h"
#include "mhla/state.h"

namespace {

using mhla::State;

// An accepted state must also work: read a block, go back, print the same bytes again.
void exercise(State state, const std::string& bytes) {
  const mhla::Problem& p = state.problem();
  constexpr std::int64_t kSmall = 1 << 12;
  if (p.batch > kSmall || p.heads > kSmall || p.dk > kSmall || p.dv > kSmall ||
      state.block_size() > kSmall) {
    return;  // an empty state of any size is valid, but its next token would need the memory
  }
  const std::int64_t tokens = p.mask == mhla::Mask::block_causal ? state.block_size() : 1;
  const std::int64_t rows = p.batch * tokens * p.heads, width = std::max(p.dk, p.dv);
  if (rows > kSmall || rows * p.dk * p.dv > (1 << 16)) return;
  std::vector<double> zeros(rows * width), out(rows * width);  // wide enough for every dtype
  const auto view = [&](std::vector<double>& values, std::int64_t columns) {
    return mhla::TensorView::contiguous(values.data(), p.dtype,
                                        {p.batch, tokens, p.heads, columns});
  };
  State::Inputs in{.q = view(zeros, p.dk), .k = view(zeros, p.dk), .v = view(zeros, p.dv)};
  if (p.separate_denominator) in.q_den = in.k_den = in.q;
  const std::int64_t before = state.tokens();
  State branch = state.fork();
  try {
    branch.prefill(in, view(out, p.dv));
    MHLA_FUZZ_CHECK(branch.tokens() == before + tokens);
  } catch (const mhla::Error& error) {  // the mixing matrix may be full
    MHLA_FUZZ_CHECK(error.code() == mhla::ErrorCode::invalid_argument);
    MHLA_FUZZ_CHECK(branch.tokens() == before);
  }
  branch.rewind(before - before % state.block_size());
  MHLA_FUZZ_CHECK(state.serialize() == bytes);
}

void read(const std::string& bytes) {
  try {
    State state = State::deserialize(bytes.data(), bytes.size());
    const std::string again = state.serialize();
    const bool old = bytes[8] == 1;  // a file of version 1, which is written as the present one
    MHLA_FUZZ_CHECK(old || again == bytes);
    exercise(std::move(state), again);
  } catch (const mhla::Error& error) {
    MHLA_FUZZ_CHECK(error.code() == mhla::ErrorCode::corrupt_data);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  read(bytes);
  if (size < sizeof(std::uint64_t)) return 0;
  const std::size_t covered = size - sizeof(std::uint64_t);
  const std::uint64_t sum = mhla::streaming::checksum(bytes.data(), covered);
  std::memcpy(bytes.data() + covered, &sum, sizeof sum);
  read(bytes);
  return 0;
}
