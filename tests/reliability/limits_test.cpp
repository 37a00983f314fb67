// Limits of the system: each ends in a sentence that names it and exit code 74, never in an abort or "this is a bug";
// no work is lost that could be saved.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/reliability/workplace.h"

using namespace trainer::tests;

namespace {

// 127: so little that the program itself could not be loaded.
bool done_or_names(const Outcome& outcome, const char* limit) {
  return outcome.code == 0 || outcome.code == 127 || (outcome.code == 74 && contains(outcome.err, limit));
}

}  // namespace

TEST_CASE("a log that cannot grow ends the run after its step, with the weights saved, and the same command goes on") {
  const Workplace in;
  const Outcome full =
      in("ulimit -f 200; exec $T run job.yaml train.steps=1000000");  // KiB; the checkpoint's files are smaller
  CAPTURE(full.err);
  CHECK(full.code == 74);
  CHECK(contains(full.err, "log.jsonl"));
  CHECK(contains(full.err, "ulimit -f 200"));
  CHECK(contains(full.err, "its weights are saved in"));
  REQUIRE(in.saved().size() == 1);
  const std::string step = std::to_string(std::stoi(in.saved().front().substr(5)));
  CHECK(contains(full.err, "training ended after step " + step));
  const Outcome more = in("exec $T run job.yaml train.steps=" + std::to_string(std::stoi(step) + 5));
  CAPTURE(more.err);
  CHECK(more.code == 0);
  CHECK(contains(more.err, "after " + step + " steps"));
  // Every step once and in order, but for the one whose line did not fit.
  std::istringstream log(contents_of(in.path("log.jsonl")));
  long last = -1, wrong = 0, lines = 0;
  for (std::string line; std::getline(log, line);) {
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object() || !record.contains("loss")) continue;
    const long at = record["step"];
    wrong += at > last ? 0 : 1;
    last = at;
    ++lines;
  }
  CHECK(wrong == 0);
  CHECK(last == std::stoi(step) + 4);
  CHECK(lines == std::stoi(step) + 4);
}

TEST_CASE("a checkpoint that is larger than files may be exits 74 and names the limit") {
  const Workplace in;
  const Outcome outcome = in("ulimit -f 16; exec $T run job.yaml");
  CHECK(outcome.code == 74);
  CHECK(contains(outcome.err, "ulimit -f 16"));
  CHECK(contains(outcome.err, "saved"));
  CHECK(in.saved().empty());
}

TEST_CASE("a log that is a named pipe is refused before training, without waiting for its reader") {
  const Workplace in;
  for (const char* reader : {"", "exec 3<>pipe; "}) {
    Process run =
        in.start(std::string("mkfifo -m 600 pipe 2>/dev/null; ") + reader + "exec $T run job.yaml log.jsonl=pipe");
    const Outcome outcome = wait_at_most(run, 20);
    CHECK(outcome.code == 74);
    CHECK(contains(outcome.err, "pipe"));
    CHECK(!in.has("saved/step-00000006"));
  }
}

#if defined(__SANITIZE_ADDRESS__)
TEST_CASE("few open files") { MESSAGE("not run: a sanitizer opens files of its own to look at memory"); }
#else
TEST_CASE("few open files end in 74 and the limit's name, or in nothing worse") {
  for (int files = 4; files < 14; ++files) {
    CAPTURE(files);
    const Workplace in;
    const Outcome outcome = in("exec prlimit --nofile=" + std::to_string(files) + " $T run job.yaml");
    CAPTURE(outcome.err);
    CHECK(done_or_names(outcome, "ulimit -n"));
  }
}
#endif

TEST_CASE("few threads end in 74 and the limit's name, or in nothing worse") {
  const Workplace in;
  // The kernel does not hold root to the limit, and counts all that another user runs.
  const std::string as = "setpriv --reuid=65534 --regid=65534 --clear-groups ";
  REQUIRE(in("chmod 777 .").code == 0);
  if (::geteuid() != 0 || in(as + "test -x $T -a -r job.yaml").code != 0) {
    MESSAGE("skipped: needs root, and a build that every user may read");
    return;
  }
  for (int threads = 1; threads < 12; ++threads)
    for (const char* ranks : {"1", "4"}) {
      CAPTURE(threads);
      CAPTURE(ranks);
      const std::string name = std::to_string(threads) + "_" + ranks;
      const Outcome outcome = in("TRAINER_THREADS=4 exec " + as + "prlimit --nproc=" + std::to_string(threads) +
                                 " $T run job.yaml checkpoint.dir=s" + name + " log.jsonl=l" + name +
                                 " strategy=ddp cluster.devices_per_node=" + ranks);
      CAPTURE(outcome.err);
      CHECK(done_or_names(outcome, "ulimit -u"));
      if (threads == 1) CHECK(outcome.code == 74);
    }
}

#if !defined(__SANITIZE_ADDRESS__)  // which takes terabytes of it
TEST_CASE("little address space ends in 74 and the limit's name, or in nothing worse") {
  for (int mib : {40, 60, 80, 100, 120, 160}) {
    CAPTURE(mib);
    const Workplace in;
    const Outcome outcome = in("ulimit -v " + std::to_string(mib * 1024) + "; exec $T run job.yaml");
    CAPTURE(outcome.err);
    CHECK(done_or_names(outcome, "ulimit -v"));
  }
}
#endif

TEST_CASE("a run that uses up its processor time saves before it is killed") {
  const Workplace in;
  Process run = in.start(std::string("ulimit -t 3; exec $T ") + kEndless);
  const Outcome outcome = wait_at_most(run, 120);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 143);
  CHECK(contains(outcome.err, "ulimit -t"));
  CHECK(in.saved().size() == 1);
}

TEST_CASE("environment switches that are no numbers, or out of range, are refused with what is allowed") {
  const Workplace in;
  for (const char* value : {"abc", "0", "-1", "1.5", "100000", "2147483648", "1e3", " 2"}) {
    CAPTURE(value);
    const Outcome outcome = in(std::string("TRAINER_THREADS='") + value + "' exec $T run job.yaml");
    CHECK(outcome.code == 64);
    CHECK(contains(outcome.err, "TRAINER_THREADS="));
    CHECK(contains(outcome.err, "1 to 4096"));
  }
  const Outcome alone = in("NNODES=2 exec $T run job.yaml");
  CHECK(alone.code == 64);
  CHECK(contains(alone.err, "NODE_RANK"));
  const Outcome node = in("NNODES=2 NODE_RANK=0 exec $T run job.yaml");
  CHECK(node.code == 64);
  CHECK(contains(node.err, "mpirun"));
  CHECK(in.saved().empty());
}
