// Flags of a problem, generated from the library's one list of fields.
#include <algorithm>
#include <cctype>

#include "cli/program.h"
#include "mhla/core/text.h"
#include "mhla/problem.h"

namespace mhla::cli {
namespace {

bool wanted(const ProblemField& field, const std::vector<std::string>& keys) {
  return keys.empty() || std::find(keys.begin(), keys.end(), field.key) != keys.end();
}

}  // namespace

void add_problem_flags(CLI::App& command, const std::vector<std::string>& keys) {
  for (const ProblemField& field : problem_fields()) {
    if (!wanted(field, keys)) continue;
    CLI::Option* option = command.add_option("--" + std::string(field.key), field.help)
                              ->type_name(field.values);
    // `--separate_denominator` alone means true.
    if (std::string(field.values) == "true|false") option->expected(0, 1);
    option->group("Problem");
  }
}

std::string problem_words(const CLI::App& command, const std::vector<std::string>& keys) {
  std::string words;
  for (const ProblemField& field : problem_fields()) {
    if (!wanted(field, keys)) continue;
    const CLI::Option* option = command.get_option("--" + std::string(field.key));
    if (option->count() == 0) continue;
    std::string value = option->results().empty() ? "" : option->results().front();
    if (value.empty() && std::string(field.values) == "true|false") value = "true";
    if (value.empty() ||
        std::any_of(value.begin(), value.end(), [](unsigned char c) { return std::isspace(c); })) {
      fail("program", field.key, ": expected ", field.values, ", got '", value, "'");
    }
    words += (words.empty() ? "" : " ") + std::string(field.key) + "=" + value;
  }
  return words;
}

CLI::Validator not_negative() {
  return CLI::Validator(
      [](std::string& text) {
        const auto value = parse_number<double>(text);
        return value && *value >= 0 ? std::string() : "expected 0 or more, got " + text;
      },
      "");
}

std::vector<std::string> choices(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  std::vector<std::string> words;
  if (type.find('|') == std::string::npos) return words;
  for (const std::string_view part : split(type, '|')) {
    const std::string_view word = part.substr(0, part.find('['));  // "cuda[:N]"
    words.emplace_back(word);
  }
  return words;
}

}  // namespace mhla::cli
