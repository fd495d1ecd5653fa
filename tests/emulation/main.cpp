// Implementations of the CUDA backend on the emulated machine, judged as `mhla verify` judges them.
//
//   emulate [OPTION...] [IMPLEMENTATION...] [PROBLEM...]
//     --seeds=N         so many schedules of each problem
//     --forward         no gradients
//     --few             of the problems it has, those that CI has time for
//     --verify=FILTER   cases of `mhla verify` whose name contains FILTER
//     --share=I/N       every Nth problem, from the Ith on
//
// A problem as `mhla explain` prints it; " gap=N" makes q, k and v slices of one tensor with N
// elements between the rows. After a problem: the result nearest to its limit, for every schedule.
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "emulator.h"
#include "mhla/mhla.h"
#include "mhla/verify/random.h"
#include "mhla/verify/trial.h"
#include "mhla/verify/verify.h"
#include "problems.h"

namespace {

using namespace mhla;

int failures = 0, runs = 0;

std::string doing;  // what a crash happened in

void report(const verify::Case& c, const verify::Subject& subject, unsigned seeds, bool forward) {
  Problem problem = c.problem;
  problem.device = Device::cuda(0);
  doing = subject.name + ": " + c.name;
  emulator::set_context(doing.c_str());
  std::string text = doing + ":";
  try {
    const Plan plan = subject.plan(problem);
    const verify::Truth truth = verify::truth_of(c);
    verify::Subject judged = subject;
    if (forward) judged.backward = nullptr;
    for (unsigned seed = 1; seed <= seeds; ++seed) {
      ++runs;
      emulator::set_seed(seed);
      const verify::Outcome outcome = verify::try_case(c, truth, judged, plan);
      char share[64];
      std::snprintf(share, sizeof share, " %s %.0f%%", outcome.tensor.c_str(),
                    100 * outcome.worst.ratio);
      text += share;
      for (const std::string& wrong : outcome.wrong) text += " WRONG: " + wrong + ";";
      if (outcome.wrong.empty()) continue;
      ++failures;
      break;
    }
  } catch (const Error& error) {
    ++failures;
    text += std::string(" FAILED: ") + error.what();
  }
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

verify::Case make_case(const std::string& name) {
  std::string text = name;
  std::int64_t gap = -1;
  if (const auto at = text.find(" gap="); at != std::string::npos) {
    gap = std::stoll(text.substr(at + 5));
    text.resize(at);
  }
  const Problem problem = parse_problem(text);
  return {.name = name,
          .form = "emulated",
          .problem = problem,
          .seed = verify::hash(name),
          .gap = gap,
          .spare_mixing = problem.layout.axes() == 1 ? 1 : 0};
}

void crash(int, siginfo_t* info, void*) {
  const char* text = info->si_addr == nullptr
                         ? "\nemulator: something that was not compiled was called\n"
                         : "\nemulator: a kernel touched memory that is nobody's\n";
  (void)!write(2, doing.data(), doing.size());
  (void)!write(2, text, std::strlen(text));
  _exit(3);
}

struct Options {
  unsigned seeds = 1;
  bool forward = false, few = false, cases = false;
  std::size_t first = 0, step = 1;
  std::string filter;
  std::vector<std::string> implementations;
  std::vector<std::string> problems;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    if (text.starts_with("--seeds=")) {
      options.seeds = static_cast<unsigned>(std::stoul(text.substr(8)));
    } else if (text.starts_with("--verify=")) {
      options.cases = true;
      options.filter = text.substr(9);
    } else if (text.starts_with("--share=")) {
      const std::size_t slash = text.find('/');
      options.first = std::stoul(text.substr(8)) - 1;
      options.step = std::stoul(text.substr(slash + 1));
    } else if (text == "--forward") {
      options.forward = true;
    } else if (text == "--few") {
      options.few = true;
    } else if (text.starts_with("cuda.")) {
      options.implementations.push_back(text);
    } else if (text.starts_with("--")) {
      fail("emulate", "unknown option ", text);
    } else {
      options.problems.push_back(text);
    }
  }
  return options;
}

// Cases of `mhla verify` that the subject serves.
std::vector<verify::Case> served_cases(const verify::Subject& subject, const std::string& filter) {
  verify::Options options;
  options.filter = filter;
  std::vector<verify::Case> served;
  for (const verify::Case& c : verify::selected_cases(options)) {
    Problem problem = c.problem;
    problem.device = Device::cuda(0);
    try {
      subject.plan(problem);
      served.push_back(c);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;  // else: for another one
    }
  }
  return served;
}

// How many problems there are, of this share and others.
std::size_t run(const Options& options) {
  std::size_t number = 0;
  for (const std::string& name : implementations()) {
    const auto& wanted = options.implementations;
    const bool asked = wanted.empty() ||
                       std::find(wanted.begin(), wanted.end(), name) != wanted.end();
    if (!name.starts_with("cuda.") || !asked) continue;
    const verify::Subject subject = verify::subject(name);
    std::vector<verify::Case> cases;
    if (options.cases) {
      cases = served_cases(subject, options.filter);
    } else {
      for (const std::string& text :
           options.problems.empty() ? problems(name, options.few) : options.problems) {
        cases.push_back(make_case(text));
      }
    }
    for (const verify::Case& c : cases) {
      if (number++ % options.step == options.first) {
        report(c, subject, options.seeds, options.forward);
      }
    }
  }
  return number;
}

}  // namespace

int main(int argc, char** argv) {
  // On a stack of its own: fibers have small ones.
  static char stack[64 << 10];
  const stack_t alternative{.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof stack};
  sigaltstack(&alternative, nullptr);
  struct sigaction action{};
  action.sa_sigaction = crash;
  action.sa_flags = SA_ONSTACK | SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);

  std::size_t problems_found = 0;
  try {
    problems_found = run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "emulate: %s\n", error.what());
    return 2;
  }
  std::printf("%d runs, %d problems wrong\n", runs, failures);
  return failures != 0 || problems_found == 0;
}
