// Runs in a process of their own: killed at any moment and resumed, and measured in memory. The process is this
// executable again, as its test case "worker" alone: a fork without exec would inherit half of a team of threads.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "engine/core/random.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

constexpr const char* kWorker = "TRAINER_TEST_WORKER";  // path of a job, then overrides, a line each

using Clock = std::chrono::steady_clock;

pid_t spawn_worker(const std::string& job, const Overrides& overrides) {
  std::string text = job;
  for (const std::string& one : overrides) text += "\n" + one;
  const EnvironmentSetting setting(kWorker, text);
  std::string self = "/proc/self/exe", only = "--test-case=worker", all = "--no-skip", quiet = "--minimal";
  char* const arguments[] = {self.data(), only.data(), all.data(), quiet.data(), nullptr};
  pid_t child = 0;
  REQUIRE(::posix_spawn(&child, self.c_str(), nullptr, nullptr, arguments, environ) == 0);
  return child;
}

int wait_for(pid_t child) {
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

TEST_CASE("worker" * doctest::skip()) {
  const char* text = std::getenv(kWorker);
  if (text == nullptr) return;
  std::istringstream lines(text);
  std::string job;
  std::getline(lines, job);
  Overrides overrides;
  for (std::string line; std::getline(lines, line);) overrides.push_back(line);
  const LoadedJob loaded = load_job(job, overrides, {.configs_dir = configs_dir()});
  const RunReport report = run(loaded).report;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  std::ofstream(job + ".memory") << report.planned_peak_bytes << " " << usage.ru_maxrss * 1024;
}

TEST_CASE("a run killed at random moments ends with the bits of one that was not, and leaves nothing behind") {
  const TinyJobs jobs;
  const std::string job = jobs.path("mlp.yaml");
  bool on_disk = false;  // the optimizer's states
  const auto overrides = [&](const std::string& folder) {
    return Overrides{"checkpoint.dir=" + jobs.path(folder),
                     "checkpoint.every=1",
                     "checkpoint.keep=2",
                     "train.steps=12",
                     "cluster.devices_per_node=2",
                     on_disk ? "strategy={data: {kind: ddp}, offload: disk}" : "strategy.data.kind=ddp",
                     "checkpoint.format=sharded"};
  };
  const std::string last = "step-00000012";
  double whole_us = 0;
  const auto whole = [&](bool with_disk) {
    on_disk = with_disk;
    const Clock::time_point begin = Clock::now();
    CHECK(wait_for(spawn_worker(job, overrides("whole"))) == 0);
    whole_us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    const auto files = files_of(jobs.path("whole/" + last));
    const auto names = names_in(jobs.path("whole"));
    std::filesystem::remove_all(jobs.path("whole"));
    return std::pair(files, names);
  };
  const std::pair expected{whole(true), whole(false)};  // manifests name the strategy
  const auto check_run = [&] {
    const auto& [files, names] = on_disk ? expected.first : expected.second;
    CHECK(files_of(jobs.path("run/" + last)) == files);
    CHECK(fmt::format("{}", fmt::join(names_in(jobs.path("run")), " ")) == fmt::format("{}", fmt::join(names, " ")));
  };

  int kills = 0, ends = 0;
  for (std::uint64_t attempt = 0; kills < 20; ++attempt) {
    REQUIRE(attempt < 200);
    on_disk = ends % 2 == 1;
    const pid_t child = spawn_worker(job, overrides("run"));
    const double part = static_cast<double>(random_below(3, 0, attempt, 1000)) / 1000;
    std::this_thread::sleep_for(std::chrono::microseconds(static_cast<std::int64_t>(part * whole_us)));
    ::kill(child, SIGKILL);
    if (const int status = wait_for(child); WIFSIGNALED(status)) {
      ++kills;
      continue;
    }
    ++ends;
    check_run();
    std::filesystem::remove_all(jobs.path("run"));
  }
  on_disk = ends % 2 == 1;
  CHECK(wait_for(spawn_worker(job, overrides("run"))) == 0);
  check_run();
  MESSAGE("20 kills, ", ends, " runs that came to their end between them");
}

TEST_CASE("a process takes the memory its plan says") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  MESSAGE("not measured: a sanitizer keeps memory of its own");
#else
  const TinyJobs jobs;
  const std::string job = jobs.path("mlp.yaml");
  REQUIRE(wait_for(spawn_worker(job, {"checkpoint.dir=" + jobs.path("run"), "train.steps=2", "model.with.hidden=2000",
                                      "model.with.layers=3", "precision.compute=bf16"})) == 0);
  double planned = 0, resident = 0;
  std::istringstream(contents_of(job + ".memory")) >> planned >> resident;
  CHECK(planned > 150e6);  // 8 million parameters: master, working copy, gradient, two states
  CHECK(resident < 1.1 * planned + 200e6);
  CHECK(resident > 0.9 * planned);  // all of it is used

  const auto large = [&](const std::string& strategy) {
    REQUIRE(wait_for(spawn_worker(job, {"checkpoint.dir=" + jobs.path("large"), "checkpoint.resume=none",
                                        "checkpoint.behind=false", "train.steps=1", "model.with.hidden=4500",
                                        "model.with.layers=3", "precision.compute=bf16", "strategy=" + strategy})) ==
            0);
    std::istringstream(contents_of(job + ".memory")) >> planned >> resident;
    CHECK(resident < 1.1 * planned + 200e6);
    std::filesystem::remove_all(jobs.path("large"));
    return planned;
  };
  const double plain = large("{data: {kind: ddp}}"), on_disk = large("{data: {kind: ddp}, offload: disk}");
  CHECK(plain - on_disk > 12.0 * (2 * 4500 * 4500 - 3 * (4 << 20)));  // but for three chunks
#endif
}
