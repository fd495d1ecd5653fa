// `mhla completion`: shell completion, made from the parser's own list of commands and flags.
#include <iostream>

#include "cli/program.h"

namespace mhla::cli {
namespace {

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

struct Flag {
  std::string name, help;
  bool takes_value;
  std::vector<std::string> values;
};

std::vector<Flag> flags_of(const CLI::App& command) {
  std::vector<Flag> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      flags.push_back({name, option->get_description(), option->get_items_expected_max() > 0,
                       choices(*option)});
    }
  }
  return flags;
}

// Words that a command takes without a flag: `completion bash`.
std::vector<std::string> words_of(const CLI::App& command) {
  std::vector<std::string> words;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_positional()) continue;
    for (const std::string& word : choices(*option)) words.push_back(word);
  }
  return words;
}

// Inside single quotes of any of the three shells.
std::string quoted(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '\'') {
      safe += "'\\''";
    } else {
      safe += c;
    }
  }
  return "'" + safe + "'";
}

void print_bash(const CLI::App& app) {
  std::cout
      << "# bash completion of mhla: source <(mhla completion bash)\n"
      << "_mhla() {\n  local word=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD-1]}\n"
      << "  local words=" << quoted(join(command_names(app)) + " --help --version") << "\n"
      << "  if [ \"$COMP_CWORD\" -gt 1 ]; then\n    case \"${COMP_WORDS[1]} $last\" in\n";
  for (const CLI::App* command : app.get_subcommands({})) {
    std::vector<std::string> names = words_of(*command);
    for (const Flag& flag : flags_of(*command)) {
      names.push_back("--" + flag.name);
      if (!flag.takes_value) continue;
      std::cout << "      " << quoted(command->get_name() + " --" + flag.name)
                << ") words=" << quoted(join(flag.values)) << " ;;\n";
    }
    std::cout << "      " << quoted(command->get_name() + " ") << "*) words=" << quoted(join(names))
              << " ;;\n";
  }
  std::cout << "      *) words='' ;;\n    esac\n  fi\n"
            << "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}\n"
            << "complete -o default -F _mhla mhla\n";
}

// Descriptions inside an _arguments specification may hold no bracket or colon.
std::string zsh_text(std::string text) {
  for (char& c : text) {
    if (c == '[' || c == ']' || c == ':') c = ' ';
  }
  return text;
}

void print_zsh(const CLI::App& app) {
  std::cout << "#compdef mhla\n# zsh completion of mhla: save as _mhla in a folder of $fpath\n"
            << "_mhla() {\n  if (( CURRENT == 2 )); then\n    _values command";
  for (const CLI::App* command : app.get_subcommands({})) {
    const std::string help = zsh_text(command->get_description());
    std::cout << " " << quoted(command->get_name() + "[" + help + "]");
  }
  std::cout << "\n    return\n  fi\n  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n"
            << "  case $command in\n";
  for (const CLI::App* command : app.get_subcommands({})) {
    std::cout << "    " << command->get_name() << ") _arguments";
    for (const Flag& flag : flags_of(*command)) {
      std::string spec = "--" + flag.name + "[" + zsh_text(flag.help) + "]";
      if (flag.takes_value) {
        spec += ":value:" + (flag.values.empty() ? "_files" : "(" + join(flag.values) + ")");
      }
      std::cout << " \\\n      " << quoted(spec);
    }
    const std::vector<std::string> words = words_of(*command);
    if (!words.empty()) std::cout << " \\\n      " << quoted("1:word:(" + join(words) + ")");
    std::cout << " ;;\n";
  }
  std::cout << "  esac\n}\n_mhla \"$@\"\n";
}

void print_fish(const CLI::App& app) {
  std::cout << "# fish completion of mhla: mhla completion fish | source\n"
            << "complete -c mhla -n __fish_use_subcommand -l help -d 'Print help'\n"
            << "complete -c mhla -n __fish_use_subcommand -l version -d 'Print the version'\n";
  for (const CLI::App* command : app.get_subcommands({})) {
    const std::string when = quoted("__fish_seen_subcommand_from " + command->get_name());
    std::cout << "complete -c mhla -f -n __fish_use_subcommand -a " << command->get_name() << " -d "
              << quoted(command->get_description()) << "\n";
    const std::vector<std::string> words = words_of(*command);
    if (!words.empty()) {
      std::cout << "complete -c mhla -f -n " << when << " -a " << quoted(join(words)) << "\n";
    }
    for (const Flag& flag : flags_of(*command)) {
      std::cout << "complete -c mhla -n " << when << " -l " << flag.name;
      if (flag.takes_value) std::cout << " -r";
      if (!flag.values.empty()) std::cout << " -f -a " << quoted(join(flag.values));
      std::cout << " -d " << quoted(flag.help) << "\n";
    }
  }
}

}  // namespace

void add_completion(CLI::App& app) {
  CLI::App* command = app.add_subcommand("completion", "Print a completion script for a shell");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "Whose completion")->required()->type_name("bash|zsh|fish");
  command->footer("Example: source <(mhla completion bash)");
  command->callback([&app, shell] {
    if (*shell == "bash") {
      print_bash(app);
    } else if (*shell == "zsh") {
      print_zsh(app);
    } else if (*shell == "fish") {
      print_fish(app);
    } else {
      fail("completion", "unknown shell '", *shell, "'; bash, zsh and fish are known");
    }
  });
}

}  // namespace mhla::cli
