// Signals at any moment: a run that has begun saves and exits 143; before that it ends with nothing to save.
#include <doctest/doctest.h>
#include <signal.h>

#include "tests/reliability/workplace.h"

using namespace trainer::tests;

namespace {

// In the midst of training: some steps are logged.
void wait_for_steps(const Workplace& in) {
  REQUIRE(within(60, [&] { return contents_of(in.path("log.jsonl")).size() > 500; }));
}

}  // namespace

TEST_CASE("every signal that asks a run to end lets it finish its step and save, and names itself") {
  struct Case {
    int signal;
    const char* says;
  };
  for (const auto& [signal, says] : {Case{SIGTERM, "SIGTERM"},
                                     {SIGINT, "Ctrl-C"},
                                     {SIGUSR1, "SIGUSR1"},
                                     {SIGHUP, "SIGHUP"},
                                     {SIGXCPU, "ulimit -t"}}) {
    CAPTURE(says);
    const Workplace in;
    Process run = in.start(std::string("exec $T ") + kEndless);
    wait_for_steps(in);
    run.signal(signal);
    const Outcome outcome = wait_at_most(run, 30);
    CHECK(outcome.code == 143);
    CHECK(contains(outcome.err, says));
    REQUIRE(in.saved().size() == 1);
    CHECK(in("exec $T inspect saved").code == 0);
  }
}

TEST_CASE("SIGHUP is ignored where it was at the start, as under nohup") {
  const Workplace in;
  Process run = in.start(std::string("trap '' HUP; exec $T ") + kEndless);
  wait_for_steps(in);
  run.signal(SIGHUP);
  CHECK(!within(1, [&] { return run.has_ended(); }));
  CHECK(in.saved().empty());
  run.signal(SIGTERM);
  CHECK(wait_at_most(run, 30).code == 143);
}

TEST_CASE("a second Ctrl-C ends at once") {
  const Workplace in;
  std::string text;
  for (int i = 0; i < 4000; ++i) text += "the quick brown fox jumps over the lazy dog\n";
  in.write("long.txt", text);
  // A step of 4096 micro-batches: the second signal comes within it.
  Process run =
      in.start(std::string("exec $T ") + kEndless + " data.train=long.txt 'train.batch={global: 16384, micro: 4}'");
  REQUIRE(within(60, [&] { return in.has("log.jsonl"); }));
  run.signal(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  run.signal(SIGINT);
  const Outcome outcome = wait_at_most(run, 10);
  CHECK(outcome.code == 128 + SIGINT);
}

TEST_CASE("a signal at any moment leaves whole checkpoints or none, and ends with 143") {
  // From planning through the first step and saves at every step, in steps of 12 ms: a run of this job begins to train
  // after some 100 ms.
  for (int delay_ms = 5; delay_ms < 300; delay_ms += 12) {
    CAPTURE(delay_ms);
    const Workplace in;
    Process run = in.start(std::string("exec $T ") + kEndless + " checkpoint.every=1 'eval={every: 3, batches: 20}'");
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    run.signal(SIGTERM);
    const Outcome outcome = wait_at_most(run, 30);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 143);
    if (!in.saved().empty()) CHECK(in("exec $T inspect saved").code == 0);
  }
}

TEST_CASE("three SIGTERM in a row are one") {
  const Workplace in;
  Process run = in.start(std::string("exec $T ") + kEndless + " checkpoint.every=1");
  wait_for_steps(in);
  for (int i = 0; i < 3; ++i) run.signal(SIGTERM);
  CHECK(wait_at_most(run, 30).code == 143);
  CHECK(in("exec $T inspect saved").code == 0);
}
