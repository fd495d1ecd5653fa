// Implementations of the CUDA backend on the emulated machine, judged as `mhla verify` judges them.
//
//   emulate [--seeds=N] [--forward] [IMPLEMENTATION] [PROBLEM...]
//   emulate --verify=FILTER [IMPLEMENTATION]      cases of `mhla verify` whose name contains FILTER
//
// A problem as `mhla explain` prints it; " gap=N" makes q, k and v slices of one tensor with N
// elements between the rows.
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <unistd.h>
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

void report(const verify::Case& c, const verify::Subject& subject, unsigned seeds, bool forward) {
  Problem problem = c.problem;
  problem.device = Device::cuda(0);
  std::printf("%s: %s:", subject.name.c_str(), c.name.c_str());
  std::fflush(stdout);
  std::optional<Plan> plan;
  try {
    plan = subject.plan(problem);
  } catch (const Error& error) {
    ++failures;
    std::printf(" REFUSED: %s\n", error.what());
    return;
  }
  verify::Truth truth = verify::truth_of(c);
  verify::Subject judged = subject;
  verify::Case asked = c;
  if (forward) judged.backward = [](auto&&...) {};
  for (unsigned seed = 1; seed <= seeds; ++seed) {
    ++runs;
    emulator::set_seed(seed);
    verify::Outcome outcome = verify::try_case(asked, truth, judged, *plan);
    if (forward) {
      std::erase_if(outcome.wrong, [](const std::string& text) { return text.starts_with("d_"); });
    }
    if (!forward) std::printf(" %s %.0f%%", outcome.tensor.c_str(), 100 * outcome.worst.ratio);
    for (const std::string& wrong : outcome.wrong) std::printf(" WRONG: %s;", wrong.c_str());
    if (!outcome.wrong.empty()) {
      ++failures;
      break;
    }
  }
  std::printf("\n");
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
  (void)!write(2, text, std::strlen(text));
  _exit(3);
}

}  // namespace

int main(int argc, char** argv) {
  unsigned seeds = 1;
  bool forward = false;
  std::string filter, implementation;
  std::vector<std::string> texts;
  bool cases = false;
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    if (text.starts_with("--seeds=")) seeds = static_cast<unsigned>(std::stoul(text.substr(8)));
    else if (text == "--forward") forward = true;
    else if (text.starts_with("--verify=")) cases = true, filter = text.substr(9);
    else if (text.starts_with("cuda.")) implementation = text;
    else texts.push_back(text);
  }
  // On a stack of its own: fibers have small ones.
  static char stack[64 << 10];
  const stack_t alternative{.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof stack};
  sigaltstack(&alternative, nullptr);
  struct sigaction action{};
  action.sa_sigaction = crash;
  action.sa_flags = SA_ONSTACK | SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);

  for (const std::string& name : implementations()) {
    if (!name.starts_with("cuda.") || (!implementation.empty() && name != implementation)) continue;
    const verify::Subject subject = verify::subject(name);
    if (cases) {
      for (const verify::Case& c : verify::selected_cases({.filter = filter})) {
        Problem problem = c.problem;
        problem.device = Device::cuda(0);
        try {
          subject.plan(problem);
        } catch (const Error&) {
          continue;  // serves something else
        }
        report(c, subject, seeds, forward);
      }
      continue;
    }
    for (const std::string& text : texts.empty() ? problems(name) : texts) {
      report(make_case(text), subject, seeds, forward);
    }
  }
  std::printf("%d runs, %d problems wrong\n", runs, failures);
  return failures != 0 || runs == 0;
}
