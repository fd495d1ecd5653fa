// JSON of unknown origin, event by event: nothing is built that the file did not pay for in bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mhla::io {

// What a reader of one document implements. A default refuses what it does not override.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void text(std::string& value) = 0;
  virtual void number(std::uint64_t value) = 0;
  // null, true, false, negative and fractional numbers: as they would be printed.
  virtual void other(const std::string& printed) = 0;
  virtual void key(std::string& name) = 0;
  virtual void begin(char bracket) = 0;  // '{' or '['
  virtual void end() = 0;
};

// Calls `events`, which may throw. Wrong syntax, text that is not UTF-8 and nesting deeper than
// `kMaxJsonDepth` throw ErrorCode::corrupt_data; `what` begins the message.
constexpr int kMaxJsonDepth = 16;
void parse_json(std::string_view json, const std::string& what, JsonEvents& events);

}  // namespace mhla::io
