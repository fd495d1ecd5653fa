// Encoding and decoding of states; see the header for the format.
#include "mhla/core/state_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

#include "mhla/error.h"

namespace mhla::streaming {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is written as it lies");

constexpr const char* kWhere = "state.load";
constexpr std::string_view kMagic = "MHLASTAT";
constexpr std::uint32_t kVersion = 2;  // the one written; 1 is read as well
constexpr std::uint32_t kMatrix = 0, kToeplitz = 1;

template <typename... Values>
[[noreturn]] void corrupt(Values&&... values) {
  fail(ErrorCode::corrupt_data, kWhere, std::forward<Values>(values)...);
}

class Writer {
 public:
  template <typename T>
  void number(T value) {
    static_assert(std::is_arithmetic_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <typename T>
  void array(const std::vector<T>& values) {
    out_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void text(std::string_view text) { out_.append(text); }
  std::string finish() && {
    number(checksum(out_.data(), out_.size()));
    return std::move(out_);
  }

 private:
  std::string out_;
};

// Every length is compared with what is left before anything is allocated.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  std::string_view text(std::uint64_t count, const char* what) {
    need(count, 1, what);
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  template <typename T>
  T number(const char* what) {
    T value;
    std::memcpy(&value, text(sizeof value, what).data(), sizeof value);
    return value;
  }
  template <typename T>
  std::vector<T> array(std::uint64_t count, const char* what) {
    need(count, sizeof(T), what);
    std::vector<T> values(count);
    const std::string_view source = text(count * sizeof(T), what);
    if (count > 0) std::memcpy(values.data(), source.data(), source.size());
    return values;
  }
  std::uint64_t left() const { return rest_.size(); }

 private:
  void need(std::uint64_t count, std::uint64_t size, const char* what) const {
    if (count > rest_.size() / size) {
      corrupt(what, ": ", count, " of ", size, " bytes expected, ", rest_.size(), " bytes left");
    }
  }
  std::string_view rest_;
};

void write_mixing(const Setup& setup, Writer& out) {
  if (const auto* matrix = std::get_if<MixingMatrix>(&setup.mixing)) {
    out.number(kMatrix);
    out.number(matrix->heads());
    out.number(matrix->rows());
    out.number(matrix->cols());
    out.array(matrix->data());
    return;
  }
  const auto& toeplitz = std::get<ToeplitzMixing>(setup.mixing);
  out.number(kToeplitz);
  out.number(std::uint32_t{toeplitz.normalizes_rows()});
  out.number(toeplitz.radius()[0]);
  out.array(toeplitz.weights());
}

Mixing read_mixing(Reader& in) {
  const auto kind = in.number<std::uint32_t>("mixing kind");
  if (kind == kMatrix) {
    const auto heads = in.number<std::int64_t>("mixing heads");
    const auto rows = in.number<std::int64_t>("mixing rows");
    const auto cols = in.number<std::int64_t>("mixing columns");
    std::int64_t count = 0;
    if (heads < 0 || rows < 1 || cols < 1 || __builtin_mul_overflow(rows, cols, &count) ||
        __builtin_mul_overflow(count, heads == 0 ? 1 : heads, &count)) {
      corrupt("mixing: impossible sizes ", heads, ", ", rows, ", ", cols);
    }
    const auto weights = in.array<float>(static_cast<std::uint64_t>(count), "mixing weights");
    return MixingMatrix::from(weights.data(), heads, rows, cols);
  }
  if (kind != kToeplitz) corrupt("mixing: unknown kind ", kind);
  const auto normalize = in.number<std::uint32_t>("mixing normalisation");
  const auto radius = in.number<std::int64_t>("mixing radius");
  if (normalize > 1) corrupt("mixing: normalisation must be 0 or 1, got ", normalize);
  if (radius < 0 || static_cast<std::uint64_t>(radius) > in.left()) {
    corrupt("mixing: impossible radius ", radius);
  }
  auto weights = in.array<float>(2 * static_cast<std::uint64_t>(radius) + 1, "mixing weights");
  return ToeplitzMixing({radius}, std::move(weights), normalize == 1);
}

// The text is checked before it is parsed, because a long layout in a short text costs memory.
Problem read_problem(std::string_view text) {
  const std::string_view first_word = text.substr(0, text.find(' '));
  const auto equals = std::min(first_word.find('='), first_word.size());
  const std::string size(first_word.substr(equals));  // "=64"
  if (!text.starts_with("sequence" + size + " block" + size + " ") ||
      text.find("_k=") != std::string_view::npos) {
    corrupt("problem: not the description of a stream");
  }
  Problem problem = parse_problem(text);
  if (problem.to_string() != text) corrupt("problem: not in the form it was written in");
  return problem;
}

template <typename T>
OpenBlock<T> read_open(const Setup& setup, std::uint32_t version, std::int64_t fill, Reader& in) {
  const Problem& problem = setup.problem;
  OpenBlock<T> open;
  open.fill = open.base = fill;
  const auto array = [&](std::int64_t count) {
    return in.array<T>(static_cast<std::uint64_t>(count), "open block");
  };
  if (version > 1) {
    open.base = in.number<std::int64_t>("open block");
    if (open.base < 0 || open.base > fill) corrupt("open block: ", open.base, " of ", fill);
    open.running = array(setup.lanes * (setup.s_width + setup.den_width));
  }
  open.s = array(setup.lanes * setup.s_width);
  if (problem.normalizer != Normalizer::none) open.z = array(setup.lanes * problem.dk);
  if (problem.normalizer == Normalizer::shared_position) {
    open.q = array(fill * setup.lanes * problem.dk);
  }
  open.k = array(open.pending(setup) * setup.lanes * problem.dk);
  open.v = array(open.pending(setup) * setup.lanes * problem.dv);
  return open;
}

template <typename T>
Stream<T> read_stream(const std::shared_ptr<const Setup>& setup, std::uint32_t version,
                      Reader& in) {
  const auto tokens = in.number<std::int64_t>("tokens");
  if (tokens < 0) corrupt("tokens: ", tokens);
  const std::int64_t blocks = tokens / setup->block, fill = tokens % setup->block;
  if (fill > 0 && setup->problem.mask == Mask::block_causal) {
    corrupt("tokens: ", tokens, " are not whole blocks of ", setup->block);
  }
  const auto limit = setup->max_blocks();
  if (limit && blocks + (fill > 0) > *limit) {
    corrupt("tokens: ", tokens, " need more than the ", *limit, " rows of the mixing matrix");
  }
  Stream<T> stream(setup);
  for (std::int64_t b = 0; b < blocks; ++b) {
    const auto s = in.array<T>(setup->lanes * setup->s_width, "closed block");
    const auto den = in.array<T>(setup->lanes * setup->den_width, "closed block");
    stream.import_summary(s.data(), den.data());
  }
  OpenBlock<T> open;
  if (fill > 0) open = read_open<T>(*setup, version, fill, in);
  if (in.left() != 0) corrupt(in.left(), " bytes too many");
  stream.import_open(open);
  return stream;
}

struct Envelope {
  std::uint32_t version;
  Reader content;
};

// Magic, version and checksum; the rest may still be nonsense that someone gave a right checksum.
Envelope open_envelope(std::string_view bytes) {
  constexpr std::size_t kEnvelope = kMagic.size() + sizeof kVersion + sizeof(std::uint64_t);
  if (bytes.size() < kEnvelope) {
    corrupt("truncated: ", bytes.size(), " bytes are too few for a state");
  }
  if (!bytes.starts_with(kMagic)) corrupt("not a state: it starts with other bytes");
  Reader in(bytes.substr(kMagic.size(), bytes.size() - kEnvelope + sizeof kVersion));
  const auto version = in.number<std::uint32_t>("version");
  if (version < 1 || version > kVersion) {
    corrupt("version ", version, " is unknown; this library reads versions 1 to ", kVersion);
  }
  const std::size_t covered = bytes.size() - sizeof(std::uint64_t);
  std::uint64_t expected = 0;
  std::memcpy(&expected, bytes.data() + covered, sizeof expected);
  if (checksum(bytes.data(), covered) != expected) corrupt("damaged: the checksum does not match");
  return {version, in};
}

}  // namespace

std::uint64_t checksum(const void* data, std::size_t bytes) {
  static const std::array<std::uint64_t, 256> table = [] {
    constexpr std::uint64_t kPolynomial = 0xc96c5795d7870f42;  // ECMA-182, bits reversed
    std::array<std::uint64_t, 256> entries{};
    for (std::uint64_t i = 0; i < entries.size(); ++i) {
      std::uint64_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? kPolynomial : 0);
      entries[i] = value;
    }
    return entries;
  }();
  const auto* byte = static_cast<const unsigned char*>(data);
  std::uint64_t crc = ~std::uint64_t{0};
  for (std::size_t i = 0; i < bytes; ++i) crc = table[(crc ^ byte[i]) & 0xff] ^ (crc >> 8);
  return ~crc;
}

template <typename T>
std::string encode(const Setup& setup, const Stream<T>& stream) {
  Writer out;
  out.text(kMagic);
  out.number(kVersion);
  const std::string problem = setup.problem.to_string();
  out.number(static_cast<std::uint32_t>(problem.size()));
  out.text(problem);
  write_mixing(setup, out);
  out.number(stream.tokens());
  for (std::int64_t b = 0; b < stream.closed(); ++b) out.array(stream.export_summary(b));
  const OpenBlock<T> open = stream.export_open();
  if (open.fill > 0) {
    out.number(open.base);
    for (const auto* part : {&open.running, &open.s, &open.z, &open.q, &open.k, &open.v}) {
      out.array(*part);
    }
  }
  return std::move(out).finish();
}

template std::string encode(const Setup&, const Stream<float>&);
template std::string encode(const Setup&, const Stream<double>&);

std::pair<std::shared_ptr<const Setup>, AnyStream> decode(const void* data, std::size_t bytes) {
  if (data == nullptr && bytes > 0) fail(kWhere, "data: null pointer");
  auto [version, in] = open_envelope(std::string_view(static_cast<const char*>(data), bytes));
  try {
    const auto length = in.number<std::uint32_t>("problem");
    const Problem problem = read_problem(in.text(length, "problem"));
    auto setup = make_setup(problem, read_mixing(in));
    if (problem.dtype == DType::f64) return {setup, read_stream<double>(setup, version, in)};
    return {setup, read_stream<float>(setup, version, in)};
  } catch (const Error& error) {  // what would be a caller's mistake elsewhere is damage here
    if (error.code() == ErrorCode::corrupt_data) throw;
    corrupt(error.what());
  }
}

}  // namespace mhla::streaming
