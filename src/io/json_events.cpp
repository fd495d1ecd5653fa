// nlohmann-json's event parser, which keeps its own stack: depth costs it nothing but memory.
#include "io/json_events.h"

#include <nlohmann/json.hpp>

#include "io/tensor.h"
#include "mhla/error.h"

namespace mhla::io {
namespace {

using nlohmann::json;

class Adapter : public nlohmann::json_sax<json> {
 public:
  Adapter(JsonEvents& events, const std::string& what) : events_(events), what_(what) {}

  bool null() override { return other("null"); }
  bool boolean(bool value) override { return other(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return other(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    events_.number(value);
    return true;
  }
  bool number_float(number_float_t, const string_t& printed) override { return other(printed); }
  bool string(string_t& value) override {
    events_.text(value);
    return true;
  }
  bool binary(binary_t&) override { return other("binary"); }  // not in JSON text
  bool start_object(std::size_t) override { return begin('{'); }
  bool start_array(std::size_t) override { return begin('['); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& name) override {
    events_.key(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::detail::exception&) override {
    fail(ErrorCode::corrupt_data, "io", what_, ": not valid JSON at byte ", position, " near ",
         shown(token), "; the file is damaged, get or write it again");
  }

 private:
  bool other(const std::string& printed) {
    events_.other(printed);
    return true;
  }
  bool begin(char bracket) {
    if (++depth_ > kMaxJsonDepth) {
      fail(ErrorCode::corrupt_data, "io", what_, ": nested deeper than ", kMaxJsonDepth,
           " levels; no program writes that, get the file from elsewhere");
    }
    events_.begin(bracket);
    return true;
  }
  bool end() {
    --depth_;
    events_.end();
    return true;
  }

  JsonEvents& events_;
  const std::string& what_;
  int depth_ = 0;
};

}  // namespace

void parse_json(std::string_view json_text, const std::string& what, JsonEvents& events) {
  Adapter adapter(events, what);
  json::sax_parse(json_text.begin(), json_text.end(), &adapter);
}

}  // namespace mhla::io
