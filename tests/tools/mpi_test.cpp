// The command under mpirun: processes train to the bits of threads; a rank that dies or hangs ends all others soon,
// which say who it was and what they wait in, and leaves whole checkpoints, from which a run ends as if nothing had
// been; ranks agree on signals and on errors.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "engine/core/random.h"
#include "tests/tools/process.h"
#include "tests/tools/workplace.h"

using namespace trainer::tests;
namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kMpiJob = R"(name: tiny
seed: 5
model:
  graph: models/gpt2.yaml
  with: {layers: 2, heads: 2, dim: 16, vocab: 256, context: 8, dropout: 0.1}
data:
  format: text
  train: text.txt
  val: {fraction: 0.2}
  seq_len: 8
train:
  steps: 6
  batch: {global: 8, micro: 1}
  optimizer: {lr: 1.0e-2}
eval: {every: 3, batches: 2}
strategy: ddp
checkpoint: {dir: runs, every: 2, keep: 3, format: sharded}
log: {every: 1000000, jsonl: log.jsonl}
)";

class MpiWorkplace : public Workplace {
 public:
  MpiWorkplace() : Workplace(kMpiJob) {
    for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}) ::setenv(name, "1", 1);
    // Tests of sanitizers' builds: MPI itself leaks.
    ::setenv("ASAN_OPTIONS", "detect_leaks=0", 0);
  }
  Outcome trainer(std::vector<std::string> arguments) const { return trainer::tests::trainer(path(), arguments); }
  Outcome mpirun(int ranks, const std::vector<std::string>& overrides) const { return start(ranks, overrides).wait(); }
  Process start(int ranks, const std::vector<std::string>& overrides) const {
    std::vector<std::string> words{
        "-n", std::to_string(ranks), "--oversubscribe", "--bind-to", "none", TRAINER_COMMAND, "run", "job.yaml"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    return Process(path(), words, TRAINER_MPIRUN);
  }
  std::map<std::string, std::string> files(const std::string& folder) const {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::directory_iterator(path(folder)))
      found[entry.path().filename()] = contents_of(entry.path());
    const nlohmann::json manifest =
        nlohmann::json::parse(found.at("manifest.json"));  // its metadata name the run and its job
    found["manifest.json"] = manifest.at("files").dump() + manifest.at("tensors").dump();
    return found;
  }
  /// The lines of a log without its starts and without times.
  std::string losses(const std::string& log) const {
    std::istringstream lines(contents_of(path(log)));
    std::string text;
    for (std::string line; std::getline(lines, line);) {
      nlohmann::json record = nlohmann::json::parse(line);
      if (record.contains("event")) continue;
      for (const char* measured : {"step_ms", "tokens_per_s", "time", "mfu"}) record.erase(measured);
      text += record.dump() + "\n";
    }
    return text;
  }
};

// Processes of mpirun's by rank. /proc/<pid>/stat: "pid (name) state ppid …".
std::map<int, pid_t> ranks_of(pid_t mpirun) {
  std::map<int, pid_t> ranks;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc", gone)) {
    const std::string name = entry.path().filename();
    if (!std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    const std::string stat = contents_of(entry.path() / "stat");
    const std::size_t end = stat.rfind(')');
    if (end == std::string::npos || std::atoi(stat.c_str() + std::min(stat.size(), end + 4)) != mpirun) continue;
    const std::string environment = contents_of(entry.path() / "environ"),
                      key = std::string(1, '\0') + "OMPI_COMM_WORLD_RANK=";
    const std::size_t at = environment.find(key);
    if (at != std::string::npos) ranks[std::atoi(environment.c_str() + at + key.size())] = std::stoi(name);
  }
  return ranks;
}

bool runs(pid_t pid) {
  const std::string stat = contents_of("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t end = stat.rfind(')');
  return end != std::string::npos && stat.size() > end + 2 && stat[end + 2] != 'Z';
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

const std::vector<std::string> kLong{"train.steps=600", "checkpoint.every=20", "eval.every=1000000",
                                     "train.batch={global: 4}"};

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Ends a random one of 4 ranks at a random moment after the first checkpoint, and checks what the others do. True if it
// met a run that still went.
bool lose_a_rank(const MpiWorkplace& in, int number, std::uint64_t attempt) {
  const auto draw = [&](std::uint64_t what, std::uint64_t below) {
    return static_cast<int>(trainer::random_below(11, what, attempt, below));
  };
  Process run = in.start(4, kLong + std::vector<std::string>{"checkpoint.dir=lost"});
  const Clock::time_point started = Clock::now();
  const auto saved = [&] {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(in.path("lost"), none))
      if (entry.path().filename().string().starts_with("step-")) return true;  // one under way has another name
    return false;
  };
  while (!saved()) {
    REQUIRE(seconds_since(started) < 60);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(draw(0, 400)));
  const std::map<int, pid_t> ranks = ranks_of(run.pid());
  if (ranks.size() < 4) return run.wait().code != 0;  // it came to its end before
  const int lost = draw(1, 4);
  ::kill(ranks.at(lost), number);
  const Clock::time_point begin = Clock::now();
  const Outcome outcome = run.wait();
  if (outcome.code == 0) return false;
  CAPTURE(outcome.err);
  CHECK(seconds_since(begin) < 15);
  CHECK(contains(outcome.err, number == SIGKILL
                                  ? "the process of rank " + std::to_string(lost) + " has ended; this rank"
                                  : "rank " + std::to_string(lost) + " has been silent for"));
  CHECK((contains(outcome.err, "(instruction #") || contains(outcome.err, "outside a program")));
  const auto left = [&] {
    return std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return runs(rank.second); });
  };
  while (left() && seconds_since(begin) < 15) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(!left());
  for (const auto& entry : fs::directory_iterator(in.path("lost")))
    if (const std::string name = entry.path().filename(); name.starts_with("step-")) {
      CAPTURE(name);
      CHECK(in.trainer({"inspect", entry.path()}).code == 0);
    }
  return true;
}

void lose_ranks(int kills, int stops) {
  const MpiWorkplace in;
  REQUIRE(in.mpirun(4, kLong + std::vector<std::string>{"checkpoint.dir=whole", "log.jsonl=whole.jsonl"}).code == 0);
  std::uint64_t attempt = 0;
  for (int i = 0; i < kills + stops; ++i) {
    fs::remove_all(in.path("lost"));
    while (!lose_a_rank(in, i < kills ? SIGKILL : SIGSTOP, attempt++)) {
      REQUIRE(attempt < 200);
      fs::remove_all(in.path("lost"));
    }
    const Outcome resumed = in.mpirun(4, kLong + std::vector<std::string>{"checkpoint.dir=lost"});
    CAPTURE(resumed.err);
    CHECK(resumed.code == 0);
    CHECK(contains(resumed.err, "resuming from"));
    CHECK(in.files("lost/step-00000600") == in.files("whole/step-00000600"));
    CHECK(in.losses("log.jsonl") == in.losses("whole.jsonl"));
  }
  MESSAGE(kills, " kills and ", stops, " stops of a rank, in ", attempt, " runs");
}

}  // namespace

TEST_CASE("2 and 4 processes train to the bits of as many threads") {
  const MpiWorkplace in;
  struct Case {
    int ranks;
    std::vector<std::string> overrides;
  };
  const std::vector<Case> cases{
      {2, {}},
      {4, {}},
      {4, {"precision.compute=bf16"}},
      {4, {"strategy={data: {kind: fsdp}, tensor: {degree: 2, sequence_parallel: true}}"}},
      {4, {"strategy={data: {kind: zero1}, pipeline: {degree: 2, schedule: 1f1b}}", "checkpoint.format=full"}},
  };
  int number = 0;
  for (const auto& [ranks, overrides] : cases) {
    CAPTURE(number);
    const std::string name = std::to_string(number++);
    const auto with = [&](const std::string& backend) {
      return overrides +
             std::vector<std::string>{"checkpoint.dir=" + backend + name, "log.jsonl=" + backend + name + ".jsonl"};
    };
    const Outcome threads =
        in.trainer(std::vector<std::string>{"run", "job.yaml", "cluster.devices_per_node=" + std::to_string(ranks)} +
                   with("threads"));
    CAPTURE(threads.err);
    REQUIRE(threads.code == 0);
    const Outcome processes = in.mpirun(ranks, with("mpi") + std::vector<std::string>{"--json"});
    CAPTURE(processes.err);
    REQUIRE(processes.code == 0);
    CHECK(contains(processes.err, "launched by Open MPI: " + std::to_string(ranks) + " processes"));
    const nlohmann::json report = nlohmann::json::parse(processes.out);  // so one rank alone wrote to stdout
    CHECK(report["world_size"] == ranks);
    CHECK(report["allocated_bytes"] == report["planned_peak_bytes"]);
    CHECK(in.files("mpi" + name + "/step-00000006") == in.files("threads" + name + "/step-00000006"));
    CHECK(in.losses("mpi" + name + ".jsonl") == in.losses("threads" + name + ".jsonl"));
  }
}

TEST_CASE("a trace has every rank's times") {
  const MpiWorkplace in;
  REQUIRE(in.mpirun(2, {"log.trace=trace.json"}).code == 0);
  REQUIRE(
      in.trainer({"run", "job.yaml", "cluster.devices_per_node=2", "checkpoint.dir=threads", "log.trace=threads.json"})
          .code == 0);
  const auto spans = [&](const char* file) {
    const nlohmann::json trace = nlohmann::json::parse(contents_of(in.path(file)));
    return (trace.is_array() ? trace : trace["traceEvents"]).size();
  };
  CHECK(spans("trace.json") == spans("threads.json"));
}

TEST_CASE(
    "a rank that is killed or stopped ends all others within 15 s, and the run resumed ends as if nothing had been") {
  ::setenv("TRAINER_SILENT_S", "3", 1);
  lose_ranks(2, 1);
  ::unsetenv("TRAINER_SILENT_S");
}

// By hand, with --no-skip.
TEST_CASE("twenty ranks lost at random moments" * doctest::skip()) { lose_ranks(16, 4); }

TEST_CASE("a signal to one rank is heard by all: they save and exit 143") {
  const MpiWorkplace in;
  Process run = in.start(2, {"train.steps=1000000", "checkpoint.every=1000000", "eval.every=1000000"});
  const Clock::time_point started = Clock::now();
  while (contents_of(in.path("log.jsonl")).empty()) {
    REQUIRE(seconds_since(started) < 60);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ::kill(ranks_of(run.pid()).at(1), SIGUSR1);
  const Outcome outcome = run.wait();
  CAPTURE(outcome.err);
  CHECK(outcome.code == 143);
  CHECK(in.trainer({"inspect", "runs"}).code == 0);
  CHECK(seconds_since(started) < 60);
}

TEST_CASE(
    "a run in long steps under mpirun saves on SIGUSR1, on SIGTERM if mpirun leaves it the time, and on every signal "
    "to open_mpi.sh") {
  const MpiWorkplace in;
  in.write("long.txt", lines_of_text(4000));
  // Steps of some seconds.
  const std::vector<std::string> slow{"model.with={layers: 4, heads: 4, dim: 128, vocab: 256, context: 256}",
                                      "data.train=long.txt",
                                      "data.seq_len=256",
                                      "train.batch={global: 64, micro: 8}",
                                      "train.steps=1000000",
                                      "checkpoint.every=1000000",
                                      "eval.every=1000000"};
  const std::string script = std::string(TRAINER_SOURCE_DIR) + "/configs/cluster/open_mpi.sh";
  ::setenv("MPIRUN", TRAINER_MPIRUN " --oversubscribe", 1);
  ::setenv("TRAINER", TRAINER_COMMAND, 1);
  struct Case {
    bool by_script;
    int signal, code;
  };
  for (const auto& [by_script, signal, code] :
       {Case{false, SIGUSR1, 143}, {false, SIGTERM, 1}, {true, SIGINT, 143}, {true, SIGTERM, 143}}) {
    CAPTURE(by_script);
    CAPTURE(signal);
    const std::string name = std::to_string(by_script) + std::to_string(signal);
    const std::vector<std::string> where{"checkpoint.dir=s" + name, "log.jsonl=l" + name};
    const std::vector<std::string> command{"--mca",
                                           "odls_base_sigkill_timeout",
                                           "10",
                                           "-n",
                                           "2",
                                           "--oversubscribe",
                                           "--bind-to",
                                           "none",
                                           TRAINER_COMMAND,
                                           "run",
                                           "job.yaml"};
    Process run = by_script
                      ? Process(in.path(), std::vector<std::string>{"localhost:2", "job.yaml"} + slow + where, script)
                      : Process(in.path(), command + slow + where, TRAINER_MPIRUN);
    const Clock::time_point started = Clock::now();
    while (contents_of(in.path("l" + name)).empty()) {
      REQUIRE(seconds_since(started) < 120);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    run.signal(signal);
    const Outcome outcome = run.wait();
    CAPTURE(outcome.err);
    CHECK(outcome.code == code);
    CHECK(in.trainer({"inspect", "s" + name}).code == 0);
  }
  ::unsetenv("MPIRUN");
  ::unsetenv("TRAINER");
}

TEST_CASE("what one rank alone cannot do ends all of them with its reason") {
  const MpiWorkplace in;
  in.write("runs", "a file where the folder of checkpoints should be");  // rank 0 makes it
  const Clock::time_point started = Clock::now();
  const Outcome outcome = in.mpirun(4, {});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 74);
  CHECK(contains(outcome.err, "runs"));
  CHECK(outcome.out.empty());
  CHECK(seconds_since(started) < 15);
}

TEST_CASE("launcher, job and backend that do not fit are refused before anything starts") {
  const MpiWorkplace in;
  struct Case {
    std::vector<std::pair<const char*, const char*>> environment;
    std::vector<std::string> overrides;
    const char* part;
  };
  const std::vector<Case> cases{
      {{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
       {"cluster.backend=threads"},
       "cluster.backend=threads"},
      {{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
       {"cluster.devices_per_node=4"},
       "started 2 ranks, but the job has 4 ranks"},
      {{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
       {"cluster.devices_per_node=2"},
       "started 1 rank, but the job has 2 ranks"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, {}, "mpirun or srun"},
      {{{"RANK", "0"}}, {}, "not WORLD_SIZE"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
       {},
       "OMPI_COMM_WORLD_RANK=1"},
      {{}, {"cluster={backend: mpi, devices_per_node: 2}"}, "mpirun -n 2"},
      {{}, {"cluster={nodes: 2}"}, "mpirun -n 2"},
  };
  for (const Case& one : cases) {
    CAPTURE(std::string(one.part));
    for (const auto& [name, value] : one.environment) ::setenv(name, value, 1);
    const Outcome outcome = in.trainer(std::vector<std::string>{"run", "job.yaml"} + one.overrides);
    const Outcome plan = in.trainer(std::vector<std::string>{"plan", "job.yaml"} + one.overrides);
    for (const auto& [name, value] : one.environment) ::unsetenv(name);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 64);
    CHECK(contains(outcome.err, one.part));
    CHECK(plan.code == 0);  // planning needs no launcher
  }
  CHECK(!fs::exists(in.path("runs")));
}
