// xz by liblzma.
#include <lzma.h>

#include <algorithm>
#include <cstdint>

#include "io/compressed.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;
// The largest preset's dictionary is 64 MiB; more would be a file made to fill the memory.
constexpr std::uint64_t kMemory = std::uint64_t{512} << 20;

struct Stream {
  lzma_stream state = LZMA_STREAM_INIT;
  ~Stream() { lzma_end(&state); }
};

const char* text_of(lzma_ret code) {
  switch (code) {
    case LZMA_BUF_ERROR: return "it ends too early";
    case LZMA_DATA_ERROR: return "damaged";
    case LZMA_MEMLIMIT_ERROR: return "needs more memory than allowed";
    case LZMA_OPTIONS_ERROR: return "uses features unknown to this liblzma";
    case LZMA_MEM_ERROR: return "no memory";
    default: return "not in the xz format";
  }
}

}  // namespace

std::string unpack_xz(std::string_view bytes, const std::string& name, std::size_t limit) {
  const auto refuse = [&](const auto&... why) {
    fail(ErrorCode::corrupt_data, "data", name, ": not a readable xz file: ", why...);
  };
  Stream stream;
  lzma_stream& state = stream.state;
  if (lzma_stream_decoder(&state, kMemory, LZMA_CONCATENATED) != LZMA_OK) refuse("no memory");
  state.next_in = reinterpret_cast<const std::uint8_t*>(bytes.data());
  state.avail_in = bytes.size();
  std::string result;
  lzma_ret code = LZMA_OK;
  while (code == LZMA_OK) {
    const std::size_t made = static_cast<std::size_t>(state.total_out);
    if (made > limit) refuse("more than the limit of ", limit, " bytes");
    if (made == result.size()) result.resize(made + std::max(kPiece, made / 2));
    state.next_out = reinterpret_cast<std::uint8_t*>(result.data() + made);
    state.avail_out = result.size() - made;
    code = lzma_code(&state, LZMA_FINISH);
  }
  if (code != LZMA_STREAM_END) refuse(text_of(code));
  if (state.total_out > limit) refuse("more than the limit of ", limit, " bytes");
  result.resize(static_cast<std::size_t>(state.total_out));
  return result;
}

}  // namespace mhla::io
