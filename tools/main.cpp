// The trainer command: reads the command line, does the work of one subcommand, turns errors into exit codes.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>

#include "engine/job/nearest.h"
#include "tools/command.h"
#include "tools/own_rank.h"
#include "tools/version.h"

namespace {

using namespace trainer::tools;

constexpr const char* kFooter =
    "A first run:\n"
    "  trainer init job.yaml        write a starter job\n"
    "  trainer plan job.yaml        see what a step will do, and what it needs\n"
    "  trainer run job.yaml         train; stop with Ctrl-C, go on with the same command\n"
    "\n"
    "Exit codes: 0 done, 64 usage, 65 bad data or checkpoint, 70 bug, 74 input/output, 78 bad job, 143 stopped by a\n"
    "signal after saving. Text for people goes to stderr, results to stdout.\n";

int usage(const CommandLine::Outcome& outcome) {
  const std::string name = outcome.subcommand.empty() ? "trainer" : "trainer " + outcome.subcommand;
  say("{}: {}\nRun `{} --help` for how it is used.\n", name, outcome.message, name);
  return kUsage;
}

// CLI11 takes an unknown word for a missing subcommand.
bool names_no_subcommand(const CommandLine& line, const std::string& word) {
  if (word.starts_with("-")) return false;
  const std::vector<std::string> names = line.subcommands();
  if (std::find(names.begin(), names.end(), word) != names.end()) return false;
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string near = trainer::nearest(word, views);
  say("trainer: there is no subcommand \"{}\"{}\nRun `trainer --help` for the list.\n", word,
      near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near));
  return true;
}

// Whether a subcommand runs kernels.
bool computes(std::string_view command) {
  constexpr std::string_view kComputing[] = {"run", "verify", "eval", "sample", "chat", "score", "calibrate"};
  return std::ranges::find(kComputing, command) != std::end(kComputing);
}

// Threads of a team wait for each other by spinning, by default for some 10 ms. That is right while every core is ours:
// but as soon as one thread has lost its core to another process, the others burn their own, and a step takes many
// times as long. 2000 turns, some 0.1 ms, bridge the gaps between kernels, and after that a thread sleeps. The OpenMP
// runtime reads this before main, so a command that computes starts itself once more.
void wait_politely(int argc, char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (!computes(command)) return;
  ::setenv("GOMP_SPINCOUNT", "2000", 1);
  ::execv("/proc/self/exe", argv);  // where this fails the command works as well, if slower on a busy machine
}

}  // namespace

int main(int argc, char** argv) {
  guard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows over its limit is an error of writing, not a signal
  wait_politely(argc, argv);
  leave_stdout_to_the_first();
  CommandLine line("A compiled, declarative training engine: a job becomes a static plan, the plan is run.", "trainer",
                   version_text());
  line.footer(kFooter);
  Work work;
  std::string tokenizer = "tokenizer";  // `tokenize train` is the same as `tokenizer train`
  if (argc > 2 && argv[1] == std::string_view("tokenize") && argv[2] == std::string_view("train"))
    argv[1] = tokenizer.data();
  for (const auto add :
       {add_run, add_plan, add_validate, add_verify, add_eval, add_sample, add_chat, add_score, add_export, add_inspect,
        add_schema, add_init, add_doctor, add_calibrate, add_data, add_tokenize, add_tokenizer})
    add(line, work);
  if (argc > 1 && names_no_subcommand(line, argv[1])) return kUsage;
  std::string help = "--help";
  char* asks_for_help[] = {argv[0], help.data()};
  const CommandLine::Outcome outcome = argc == 1 ? line.parse(2, asks_for_help) : line.parse(argc, argv);
  if (outcome.kind == CommandLine::Outcome::Kind::shown) return finish(kDone);
  if (outcome.kind == CommandLine::Outcome::Kind::mistake) return usage(outcome);
  try {
    return finish(work());
  } catch (...) {
    return report_error();
  }
}
