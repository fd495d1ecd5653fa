// The command line: one parser, from which help, completion and hints are made.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "mhla/error.h"

namespace mhla::cli {

// 0, 1 (a failure at run time) or 2 (usage). Results go to stdout, everything else to stderr.
int run(int argc, char** argv);

std::vector<std::string> command_names(const CLI::App& app);

// A command reports failure of what it ran by throwing this; its text was printed before.
struct Failed {};

// Each adds its subcommand. The callback prints the result.
void add_info(CLI::App& app);
void add_explain(CLI::App& app);
void add_verify(CLI::App& app);
void add_mixing(CLI::App& app);
void add_bench(CLI::App& app);
void add_train(CLI::App& app);
void add_eval(CLI::App& app);
void add_compare(CLI::App& app);
void add_convert(CLI::App& app);
void add_data(CLI::App& app);
void add_completion(CLI::App& app);

// `[mhla.problem] grid: ...` without the bracket, which names a function of the library.
std::string plain_message(const std::string& message);

// Flags for the problem's fields, made from problem_fields(). `keys` empty: all of them.
void add_problem_flags(CLI::App& command, const std::vector<std::string>& keys);
// The flags that were given, as words for parse_problem: "grid=32x32 block=8x8".
std::string problem_words(const CLI::App& command, const std::vector<std::string>& keys);

// Checks a number given to a flag, with a message that says no more than that.
CLI::Validator not_negative();

// The words an option takes, read from its type text "a|b|c"; empty when it takes anything.
std::vector<std::string> choices(const CLI::Option& option);

}  // namespace mhla::cli
