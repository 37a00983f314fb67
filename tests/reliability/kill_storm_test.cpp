// The command killed at random moments, run again until it comes to its end, many times over: always the bits of a run
// that was left alone, and every checkpoint that can be seen is whole. As one process, as ranks that are threads, and
// as ranks that are processes of which one is killed.
#include <doctest/doctest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "engine/core/random.h"
#include "tests/reliability/storm.h"

using namespace trainer::tests;

namespace {

using Clock = std::chrono::steady_clock;

const std::string kLastStep = "step-00000012";

// Process of each rank that mpirun started: its children, and theirs.
std::vector<pid_t> descendants(pid_t parent) {
  std::vector<pid_t> found;
  std::ifstream file("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children");
  for (pid_t child = 0; file >> child;) {
    found.push_back(child);
    for (const pid_t each : descendants(child)) found.push_back(each);
  }
  return found;
}

// How a run is started, and which of its processes is killed.
struct Form {
  Words before;  // words before the command: a launcher
  Words overrides;
  bool kills_rank = false;
};

class KillStorm {
 public:
  explicit KillStorm(Form form) : form_(std::move(form)) {
    const Clock::time_point begin = Clock::now();
    const Outcome outcome = start()->wait();
    REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
    whole_us_ = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    expected_ = storm_.weights(kLastStep);
    expected_names_ = storm_.names();
    REQUIRE(!expected_.empty());
    storm_.clear();
  }

  void kill_until(int wanted) {
    int kills = 0, ends = 0;
    for (std::uint64_t attempt = 0; kills < wanted; ++attempt) {
      REQUIRE(attempt < 20 * static_cast<std::uint64_t>(wanted));
      const std::unique_ptr<Process> process = start();
      const double part = static_cast<double>(trainer::random_below(7, 0, attempt, 1000)) / 1000;
      std::this_thread::sleep_for(std::chrono::microseconds(static_cast<std::int64_t>(part * whole_us_)));
      kill_one(*process, attempt);
      const Outcome outcome = process->wait();
      CAPTURE(outcome.err);
      CHECK(!contains(outcome.err, "damaged"));
      CHECK(storm_.broken().empty());
      if (outcome.code != 0) {
        ++kills;
        continue;
      }
      ++ends;
      check_end();
      storm_.clear();
    }
    CHECK(start()->wait().code == 0);
    check_end();
    MESSAGE(kills, " kills, ", ends, " runs that came to their end between them");
  }

 private:
  std::unique_ptr<Process> start() const {
    return std::make_unique<Process>(
        storm_.path(),
        form_.before + Words{TRAINER_COMMAND, "run", "job.yaml", "train.steps=12", "checkpoint.every=1"} +
            form_.overrides,
        "/usr/bin/env");
  }

  void kill_one(const Process& process, std::uint64_t attempt) const {
    const std::vector<pid_t> ranks = form_.kills_rank ? descendants(process.pid()) : std::vector<pid_t>{};
    if (ranks.empty()) return process.signal(SIGKILL);
    ::kill(ranks[static_cast<std::size_t>(trainer::random_below(8, 0, attempt, ranks.size()))], SIGKILL);
  }

  void check_end() const {
    CHECK(storm_.weights(kLastStep) == expected_);
    CHECK(storm_.names() == expected_names_);
  }

  const Storm storm_;
  const Form form_;
  double whole_us_ = 0;
  std::map<std::string, std::string> expected_;
  Words expected_names_;
};

}  // namespace

TEST_SUITE_BEGIN("kill_storm");

TEST_CASE("one process, killed at random moments") { KillStorm({{}, {}}).kill_until(is_long() ? 200 : 25); }

TEST_CASE("two ranks as threads that save their shares, killed at random moments") {
  KillStorm({{}, {"cluster.devices_per_node=2", "strategy=fsdp", "checkpoint.format=sharded"}})
      .kill_until(is_long() ? 100 : 12);
}

#ifdef TRAINER_MPIRUN
TEST_CASE("two ranks as processes, of which one is killed at a random moment") {
  KillStorm({{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", TRAINER_MPIRUN, "-n", "2",
              "--oversubscribe", "--bind-to", "none"},
             {"cluster.devices_per_node=2", "strategy=fsdp", "checkpoint.format=sharded"},
             true})
      .kill_until(is_long() ? 40 : 4);
}
#endif

TEST_CASE("commands that read a folder find a whole checkpoint, whatever a run removes meanwhile") {
  const Storm storm;
  REQUIRE(storm.run({"train.steps=1", "checkpoint.every=1"}).code == 0);
  const std::unique_ptr<Process> run =
      storm.start({"train.steps=100000000", "checkpoint.every=1", "log.every=1000000"});
  const Words eval{"eval", "job.yaml", "data.val=text.txt", "--batches", "1"};
  for (int i = 0; i < (is_long() ? 100 : 15); ++i)
    for (const Words& arguments :
         {Words{"inspect", "ck"}, eval, eval + Words{"cluster.devices_per_node=2", "strategy=fsdp"}}) {
      const Outcome outcome = trainer::tests::trainer(storm.path(), arguments);
      CHECK_MESSAGE(outcome.code == 0, outcome.err);
    }
  run->signal(SIGTERM);
  CHECK(run->wait().code == 143);
}

TEST_SUITE_END();
