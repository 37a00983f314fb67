// stderr and stdout that are closed, full, stalled or left by their reader, and text that a terminal would obey.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/reliability/workplace.h"

using namespace trainer::tests;

namespace {

constexpr const char* kUnwritable[] = {"2>&-", "2>/dev/full", "2>&- <&-"};

bool every_line_is_json(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (!nlohmann::json::accept(line)) return false;
  return !text.empty();
}

// What a command writes to a terminal as its stdout.
std::string on_terminal(const Workplace& in, const std::string& line) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) return "no terminal";
  Process process = in.start(line + " >" + ::ptsname(terminal));
  std::string text;
  char bytes[4096];
  const auto take = [&] {
    for (ssize_t got = 0; (got = ::read(terminal, bytes, sizeof bytes)) > 0;)
      text.append(bytes, static_cast<std::size_t>(got));
  };
  within(60, [&] { return take(), process.has_ended(); });
  take();
  ::close(terminal);
  process.wait();
  return text;
}

}  // namespace

TEST_CASE("a stderr that cannot be written changes neither what a command does nor its exit code") {
  for (const std::string stderr_of : kUnwritable) {
    CAPTURE(stderr_of);
    const Workplace in;
    in.write("bad.yaml", "name: x\nmodell: {}\n");
    CHECK(in("exec $T run job.yaml " + stderr_of).code == 0);
    CHECK(in.saved() == std::vector<std::string>{"step-00000006"});
    CHECK(every_line_is_json(contents_of(in.path("log.jsonl"))));  // no file became stderr
    const Outcome inspected = in("exec $T inspect saved " + stderr_of);
    CHECK(inspected.code == 0);
    CHECK(contains(inspected.out, "step 6"));
    CHECK(in("exec $T eval job.yaml " + stderr_of).code == 0);
    CHECK(in("exec $T validate bad.yaml " + stderr_of).code == 78);
    CHECK(in("exec $T no-such-command " + stderr_of).code == 64);
    CHECK(in("exec $T run job.yaml data.train=missing.txt checkpoint.dir=other " + stderr_of).code == 65);
    CHECK(in("exec $T run missing.yaml " + stderr_of).code == 74);
  }
}

TEST_CASE("a result that cannot be written exits 74 and says so; the weights are saved all the same") {
  for (const std::string stdout_of : {">&-", ">/dev/full"}) {
    CAPTURE(stdout_of);
    const Workplace in;
    const Outcome run = in("exec $T run job.yaml --json " + stdout_of);
    CHECK(run.code == 74);
    CHECK(contains(run.err, "stdout"));
    CHECK(in.saved().size() == 1);
    CHECK(in("exec $T plan job.yaml " + stdout_of).code == 74);
    CHECK(in("exec $T --help " + stdout_of).code == 74);
  }
}

TEST_CASE("a reader that has seen enough ends nothing by a signal") {
  const Workplace in;
  const Outcome plan = in("$T plan job.yaml | head -1 >/dev/null; exit ${PIPESTATUS[0]}");
  CHECK((plan.code == 0 || plan.code == 74));  // 0: head read slowly enough to get all of it
  CHECK(plan.err == "");
  const Outcome run = in("$T run job.yaml 2>&1 >/dev/null | head -1 >/dev/null; exit ${PIPESTATUS[0]}");
  CHECK(run.code == 0);
  CHECK(in.saved().size() == 1);
}

TEST_CASE(
    "a stderr that nobody reads neither stops training nor keeps a signal from ending it with its weights saved") {
  const Workplace in;
  const std::string stalled = "mkfifo full; exec 3<>full; ";
  Process whole =
      in.start(stalled + "exec $T run job.yaml train.steps=3000 2>full");  // some 200 kB of progress; a pipe takes 64
  const Outcome ended = wait_at_most(whole, 60);
  CHECK(ended.code == 0);
  CHECK(in.saved() == std::vector<std::string>{"step-00003000"});

  Process endless = in.start("exec 3<>full; exec $T run job.yaml train.steps=100000000 2>full");
  const auto lines = [&] {
    const std::string log = contents_of(in.path("log.jsonl"));
    return std::count(log.begin(), log.end(), '\n');
  };
  REQUIRE(within(60, [&] { return lines() > 6000; }));
  endless.signal(SIGTERM);
  CHECK(wait_at_most(endless, 20).code == 143);
  CHECK(in.saved().size() == 2);
}

TEST_CASE("nothing from a job, a file or the command line reaches stderr as an escape sequence") {
  const Workplace in;
  const std::string escape = "\x1b]0;owned\x07";
  in.write("keys.yaml", "name: x\n\"a" + std::string("\\x1b[31m") + "b\": 1\n");
  in.write("raw.yaml", "name: " + escape + "\n");
  in.write("table.csv", "a,b\n1," + escape + "\n2,3\n");
  const std::string dollar = "$'\\e]0;owned\\a'";
  const std::vector<std::string> lines{
      "exec $T run job.yaml name='\"\\e]0;owned\\a\"'",
      "exec $T validate keys.yaml",
      "exec $T validate raw.yaml",
      "exec $T validate " + dollar,
      "exec $T " + dollar,
      "exec $T validate job.yaml --no" + dollar,
      "exec $T inspect " + dollar,
      "exec $T run job.yaml train.steps=" + dollar,
      "exec $T run job.yaml data.train=" + dollar,
      "exec $T run job.yaml 'data={format: table, train: table.csv, label: b}'",
  };
  for (const std::string& line : lines) {
    CAPTURE(line);
    const Outcome outcome = in(line);
    CHECK(!outcome.err.empty());
    CHECK(outcome.err.find('\x1b') == std::string::npos);
    CHECK(outcome.err.find('\x07') == std::string::npos);
  }
}

TEST_CASE("on a terminal results are shown without what it would obey; in a pipe they are as they are") {
  const Workplace in;
  const std::string plan = "exec $T plan job.yaml name='\"\\e]0;owned\\a größe\"'";
  const std::string shown = on_terminal(in, plan);
  CHECK(contains(shown, "\\x1b]0;owned\\x07 größe: plan"));
  CHECK(shown.find('\x1b') == std::string::npos);
  CHECK(contains(in(plan).out, "\x1b]0;owned\x07 größe: plan"));
}
