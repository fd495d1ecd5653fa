#include "io/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "mhla/error.h"

namespace mhla::io {
namespace {

constexpr const char* kWhere = "io.tensorboard";

constexpr std::array<std::uint32_t, 256> crc_table() {
  constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli, bits reversed
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? kPolynomial : 0);
    table[i] = value;
  }
  return table;
}

// So that the sum of a record that holds sums is not trivial.
std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8u; }

template <typename Number>
void put_fixed(std::string& to, Number value) {
  static_assert(std::endian::native == std::endian::little);
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>(value | 0x80);
  to += static_cast<char>(value);
}

// Wire types of protocol buffers.
enum Wire : unsigned { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_key(std::string& to, unsigned field, Wire wire) { put_varint(to, field << 3 | wire); }

void put_bytes(std::string& to, unsigned field, std::string_view value) {
  put_key(to, field, bytes);
  put_varint(to, value.size());
  to += value;
}

// Fields of Event: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7.
std::string event_at(std::int64_t step) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  put_key(event, 1, fixed64);
  put_fixed(event, now.count());
  put_key(event, 2, varint);
  put_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

std::string new_path(const std::string& folder) {
  std::array<char, 256> host{};
  const bool named = ::gethostname(host.data(), host.size() - 1) == 0;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count() % 1000000;
  // Readers take the files of a folder in the order of their names.
  return folder + "/events.out.tfevents." + std::to_string(seconds) + "." +
         (named ? host.data() : "localhost") + "." + std::to_string(::getpid()) + "." +
         std::to_string(micros);
}

}  // namespace

std::uint32_t crc32c(std::string_view text) {
  static constexpr auto kTable = crc_table();
  std::uint32_t crc = ~0u;
  for (const char c : text) crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 255] ^ (crc >> 8);
  return ~crc;
}

TensorBoard::TensorBoard(const std::string& folder, std::int64_t first_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  path_ = new_path(folder);
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) fail(ErrorCode::io, kWhere, "cannot create '", path_, "': ", std::strerror(errno));
  std::string event = event_at(0);
  put_bytes(event, 3, "brain.Event:2");
  record(event);
  if (first_step > 0) {
    std::string log;
    put_key(log, 1, varint);  // SessionLog.status
    put_varint(log, 1);       // START
    event = event_at(first_step);
    put_bytes(event, 7, log);
    record(event);
  }
  flush();
}

TensorBoard::~TensorBoard() {
  try {
    flush();
  } catch (const Error&) {  // the folder may be gone or full; nothing is lost but curves
  }
  ::close(file_);
}

void TensorBoard::record(std::string_view event) {
  std::string length;
  put_fixed<std::uint64_t>(length, event.size());
  buffer_ += length;
  put_fixed(buffer_, masked(crc32c(length)));
  buffer_ += event;
  put_fixed(buffer_, masked(crc32c(event)));
}

void TensorBoard::scalars(std::int64_t step,
                          const std::vector<std::pair<std::string, double>>& values) {
  std::string summary;
  for (const auto& [tag, value] : values) {
    std::string entry;
    put_bytes(entry, 1, tag);
    put_key(entry, 2, fixed32);  // simple_value
    put_fixed(entry, static_cast<float>(value));
    put_bytes(summary, 1, entry);
  }
  std::string event = event_at(step);
  put_bytes(event, 5, summary);
  record(event);
}

void TensorBoard::flush() {
  std::size_t done = 0;
  while (done < buffer_.size()) {
    const ::ssize_t written = ::write(file_, buffer_.data() + done, buffer_.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int why = errno;
      buffer_.erase(0, done);
      fail(ErrorCode::io, kWhere, "cannot write '", path_, "': ", std::strerror(why));
    }
    done += static_cast<std::size_t>(written);
  }
  buffer_.clear();
}

}  // namespace mhla::io
