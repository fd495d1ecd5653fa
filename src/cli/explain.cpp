// `mhla explain`: the plan for a problem, and why.
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "mhla/mhla.h"

namespace mhla::cli {
namespace {

struct Arguments {
  std::vector<std::string> words;
  std::string implementation;
  int threads = 0;
  bool json = false;
};

nlohmann::json to_json(const Plan& plan) {
  nlohmann::json candidates = nlohmann::json::array();
  for (const Candidate& c : plan.candidates()) {
    candidates.push_back({{"implementation", c.implementation},
                          {"chosen", c.chosen},
                          {"predicted_seconds", c.predicted_seconds},
                          {"reason", c.reason}});
  }
  return {{"problem", plan.problem().to_string()},
          {"implementation", plan.implementation()},
          {"forward",
           {{"flops", plan.cost().forward_flops},
            {"bytes", plan.cost().forward_bytes},
            {"workspace", plan.forward_workspace()}}},
          {"backward",
           {{"flops", plan.cost().backward_flops},
            {"bytes", plan.cost().backward_bytes},
            {"workspace", plan.backward_workspace()}}},
          {"candidates", candidates}};
}

void explain(const CLI::App& command, const Arguments& arguments) {
  std::string text = problem_words(command, {});
  for (const std::string& word : arguments.words) text += " " + word;
  if (text.empty()) {
    fail("explain", "no problem given: try --grid 32x32 --block 8x8 --heads 6 --dk 64");
  }
  const Plan chosen = plan(parse_problem(text), {.implementation = arguments.implementation,
                                                 .threads = arguments.threads});
  if (arguments.json) {
    std::cout << to_json(chosen).dump(2) << "\n";
  } else {
    std::cout << chosen.explain();
  }
}

}  // namespace

void add_explain(CLI::App& app) {
  CLI::App* command = app.add_subcommand("explain", "Print the plan for a problem, and why");
  auto arguments = std::make_shared<Arguments>();
  add_problem_flags(*command, {});
  command->add_option("problem", arguments->words, "The same as words: grid=32x32 block=8x8 ...")
      ->type_name("KEY=VALUE");
  command->add_option("--implementation", arguments->implementation, "Force one by name")
      ->type_name("NAME");
  command->add_option("--threads", arguments->threads, "CPU threads; 0 takes all cores")
      ->type_name("COUNT");
  command->add_flag("--json", arguments->json, "Print one JSON document");
  command->footer("Example: mhla explain --grid 32x32 --block 8x8 --heads 6 --dk 64");
  command->callback([command, arguments] { explain(*command, *arguments); });
}

}  // namespace mhla::cli
