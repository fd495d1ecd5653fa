// Fuzzes the parser of problems: any text is refused with mhla::Error or reads back as printed.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/check.h"
#include "mhla/error.h"
#include "mhla/problem.h"

namespace {

using mhla::BlockLayout;
using mhla::Problem;

// Walking every token is only done for layouts that a second of fuzzing has room for.
constexpr std::int64_t kSmall = 2048;

bool refuses_token(const BlockLayout& layout, std::int64_t token) {
  try {
    layout.locate(token);
    return false;
  } catch (const mhla::Error& error) {
    return error.code() == mhla::ErrorCode::invalid_argument;
  }
}

void check_layout(const BlockLayout& layout) {
  MHLA_FUZZ_CHECK(layout.tokens() >= 1 && layout.mixing_size() >= 1);
  MHLA_FUZZ_CHECK(refuses_token(layout, -1) && refuses_token(layout, layout.tokens()));
  if (layout.tokens() > kSmall) return;
  std::int64_t tokens = 0;
  for (const auto& block : layout.blocks()) {
    MHLA_FUZZ_CHECK(block.tokens() >= 1 && block.tokens() <= layout.max_block_tokens());
    MHLA_FUZZ_CHECK(block.index >= 0 && block.index < layout.mixing_size());
    tokens += block.tokens();
  }
  MHLA_FUZZ_CHECK(tokens == layout.tokens());
  for (std::int64_t token = 0; token < tokens; ++token) {
    const auto place = layout.locate(token);
    MHLA_FUZZ_CHECK(layout.token_at(place) == token);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Problem problem = mhla::parse_problem(text);
    const std::string printed = problem.to_string();
    const Problem again = mhla::parse_problem(printed);
    MHLA_FUZZ_CHECK(again == problem);
    MHLA_FUZZ_CHECK(again.to_string() == printed);
    mhla::check(problem);
    check_layout(problem.layout);
    check_layout(problem.keys());
  } catch (const mhla::Error& error) {
    MHLA_FUZZ_CHECK(error.code() == mhla::ErrorCode::invalid_argument);
  }
  return 0;
}
