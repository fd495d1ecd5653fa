// Parsing, the one-line errors with their hints, and exit codes.
#include "cli/program.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>

#include "mhla/core/text.h"
#include "mhla/version.h"

namespace mhla::cli {
namespace {

constexpr int kFailure = 1, kUsage = 2;

std::string without_stack(const std::string& message) {
  const std::size_t end = std::min(message.find("\nException raised from "),
                                   message.find("\nframe #"));
  return message.substr(0, end);
}

// One line whatever the message holds, without the stack that LibTorch appends to its own.
int report(const std::string& message, const std::string& hint, int code) {
  std::string line = "mhla: error: " + without_stack(message);
  if (!hint.empty()) line.append(" (").append(hint).append(")");
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  std::fprintf(stderr, "%s\n", line.c_str());
  return code;
}

const CLI::App& active(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

std::vector<std::string> flag_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known,
                         const std::string& otherwise) {
  const std::string hint = nearest(word, known);
  return hint.empty() ? otherwise : "did you mean '" + hint + "'?";
}

std::string path_of(const CLI::App& command) {
  const std::string& name = command.get_name();
  return name == "mhla" ? name : "mhla " + name;
}

int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = active(app);
  const std::string help = "see '" + path_of(command) + " --help'";
  for (const std::string& word : app.remaining(true)) {
    if (&command == &app && word[0] != '-') {
      return report("unknown command '" + word + "'", did_you_mean(word, command_names(app), help),
                    kUsage);
    }
    if (word.starts_with("-")) {
      const std::string flag = word.substr(0, word.find('='));
      return report("unknown flag '" + flag + "' of '" + path_of(command) + "'",
                    did_you_mean(flag, flag_names(command), help), kUsage);
    }
    return report("unexpected argument '" + word + "'", help, kUsage);
  }
  return report(error.what(), help, kUsage);
}

// `--feature-map` and `--feature_map` are the same flag.
std::vector<std::string> normalized(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  for (std::string& word : words) {
    if (!word.starts_with("--")) continue;
    const std::size_t end = std::min(word.find('='), word.size());
    for (std::size_t i = 2; i < end; ++i) {
      if (word[i] == '-') word[i] = '_';
    }
  }
  return {words.rbegin(), words.rend()};  // CLI11 takes them from the back
}

int parse_and_run(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(normalized(argc, argv));
    return 0;
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted, std::cout, std::cerr);
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error);
  } catch (const Failed&) {
    return kFailure;
  } catch (const Error& error) {
    const std::string message = plain_message(error.what());
    if (error.code() != ErrorCode::invalid_argument) return report(message, "", kFailure);
    const bool has_hint = message.find("did you mean") != std::string::npos ||
                          message.find(": try ") != std::string::npos;
    return report(message, has_hint ? "" : "see '" + path_of(active(app)) + " --help'", kUsage);
  } catch (const std::exception& error) {
    return report(error.what(), "", kFailure);
  }
}

}  // namespace

std::string plain_message(const std::string& message) {
  const std::size_t end = message.find("] ");
  return message.starts_with("[mhla.") && end != std::string::npos ? message.substr(end + 2)
                                                                   : message;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

int run(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file over the limit is an error like a full disk
  CLI::App app("Multi-Head Linear Attention: verify, explain, measure, train.", "mhla");
  app.set_version_flag("--version", std::string("mhla ") + version(), "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.require_subcommand(1);
  app.get_formatter()->column_width(36);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  add_info(app);
  add_explain(app);
  add_verify(app);
  add_mixing(app);
  add_bench(app);
  add_train(app);
  add_eval(app);
  add_compare(app);
  add_convert(app);
  add_data(app);
  add_completion(app);
  const int code = parse_and_run(app, argc, argv);
  // A full disk or a closed pipe must not look like success.
  if (code == 0 && (!std::cout.flush() || std::fflush(stdout) != 0)) {
    return report("could not write to stdout", "", kFailure);
  }
  return code;
}

}  // namespace mhla::cli
