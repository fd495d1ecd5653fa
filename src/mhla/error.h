// The one exception type of the library, and the helper that builds its messages from values.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace mhla {

enum class ErrorCode {
  invalid_argument,  // the call contradicts itself or its documentation
  unsupported,       // meaningful, but no implementation on this device serves it
  corrupt_data,      // a file or buffer is truncated, damaged or of an unknown version
  io,                // the operating system refused to read or write
  device,            // the CUDA runtime reported a failure
  internal,          // a defect of this library
};

// Messages read `[mhla.forward] k: expected shape [2, 196, 6, 64], got [2, 195, 6, 64]`.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

// Throws Error with `[mhla.<where>] ` followed by the streamed values.
template <typename... Values>
[[noreturn]] void fail(ErrorCode code, const char* where, Values&&... values) {
  std::ostringstream message;
  message << "[mhla." << where << "] ";
  (message << ... << std::forward<Values>(values));
  throw Error(code, message.str());
}

template <typename... Values>
[[noreturn]] void fail(const char* where, Values&&... values) {
  fail(ErrorCode::invalid_argument, where, std::forward<Values>(values)...);
}

}  // namespace mhla
