// gzip by zlib.
#include <zlib.h>

#include <algorithm>

#include "io/compressed.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;

struct Stream {
  z_stream state{};
  ~Stream() { inflateEnd(&state); }
};

}  // namespace

std::string unpack_gz(std::string_view bytes, const std::string& name, std::size_t limit) {
  const auto refuse = [&](const auto&... why) {
    fail(ErrorCode::corrupt_data, "data", name, ": not a readable gzip file: ", why...);
  };
  Stream stream;
  z_stream& state = stream.state;
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  if (inflateInit2(&state, kGzipOnly) != Z_OK) refuse("zlib has no memory");
  std::string result;
  std::size_t taken = 0, made = 0;
  int code = Z_OK;
  while (taken < bytes.size() || code != Z_STREAM_END) {
    if (code == Z_STREAM_END && inflateReset(&state) != Z_OK) refuse("zlib");  // another member
    if (made == result.size()) result.resize(made + std::max(kPiece, made / 2));
    const std::size_t piece = std::min(bytes.size() - taken, kPiece);
    const std::size_t room = std::min(result.size() - made, kPiece);
    state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + taken));
    state.avail_in = static_cast<uInt>(piece);
    state.next_out = reinterpret_cast<Bytef*>(result.data() + made);
    state.avail_out = static_cast<uInt>(room);
    code = inflate(&state, Z_NO_FLUSH);
    taken += piece - state.avail_in;
    made += room - state.avail_out;
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
      refuse(state.msg ? state.msg : "damaged");
    }
    if (made > limit) refuse("more than the limit of ", limit, " bytes");
    if (code == Z_BUF_ERROR && taken == bytes.size()) refuse("it ends too early");
  }
  result.resize(made);
  return result;
}

}  // namespace mhla::io
