// Checkpoints that are written while steps run, on a disk that is slow: what waits for them, and what does not.
#include <doctest/doctest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "tests/reliability/storm.h"

using namespace trainer::tests;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
TEST_SUITE_BEGIN("behind");
TEST_CASE("a slow disk") { MESSAGE("not run: a sanitizer must be the first library of a process"); }
TEST_SUITE_END();
#else

namespace {

const std::string kSlow = "FAULTS_SLOW_MS=400";

Words on(const Storm& storm, const Words& settings) {
  return Words{"LD_PRELOAD=" TRAINER_FAULTS, "FAULTS_IN=" + storm.checkpoints() + "/.step-"} + settings;
}

Words all_kept(const Words& more) { return Words{"checkpoint.keep=null", "log.every=1"} + more; }

}  // namespace

TEST_SUITE_BEGIN("behind");

TEST_CASE("steps go on while a checkpoint is written, and the end of the run waits for it") {
  const Storm storm;
  const Words job = all_kept({"train.steps=12", "checkpoint.every=10"});
  for (const bool behind : {true, false}) {
    CAPTURE(behind);
    storm.clear();
    const Outcome outcome =
        storm.run(job + Words{behind ? "checkpoint.behind=true" : "checkpoint.behind=false"}, on(storm, {kSlow}));
    CAPTURE(outcome.err);
    REQUIRE(outcome.code == 0);
    const std::size_t saved = outcome.err.find("saved"), last = outcome.err.find("step 12/12");
    REQUIRE(saved != std::string::npos);
    REQUIRE(last != std::string::npos);
    CHECK((last < saved) == behind);
    CHECK(storm.names() == Words{"step-00000010", "step-00000012"});
    CHECK(storm.broken().empty());
  }
}

TEST_CASE("a save that comes while another is written waits for it") {
  const Storm storm;
  const Outcome outcome = storm.run(all_kept({"train.steps=4", "checkpoint.every=1"}), on(storm, {kSlow}));
  CHECK_MESSAGE(outcome.code == 0, outcome.err);
  CHECK(storm.names() == Words{"step-00000001", "step-00000002", "step-00000003", "step-00000004"});
  CHECK(storm.broken().empty());
  storm.copy("ck", "slow");
  storm.clear();
  REQUIRE(storm.run(all_kept({"train.steps=4", "checkpoint.every=1", "checkpoint.behind=false"})).code == 0);
  for (const std::string& name : storm.names()) CHECK(storm.weights(name) == storm.weights("../slow/" + name));
}

TEST_CASE("a signal waits for what is being written and then saves the last step") {
  const Storm storm;
  const auto run =
      storm.start(all_kept({"train.steps=100000000", "checkpoint.every=3", "log.every=1000000"}), on(storm, {kSlow}));
  const std::string hidden = storm.checkpoints() + "/.step-00000003.tmp";
  for (int i = 0; i < 6000 && !std::filesystem::exists(hidden); ++i) ::usleep(5000);
  REQUIRE(std::filesystem::exists(hidden));
  run->signal(SIGTERM);
  const Outcome outcome = run->wait();
  CHECK_MESSAGE(outcome.code == 143, outcome.err);
  REQUIRE(!storm.names().empty());
  CHECK(storm.names().front() == "step-00000003");
  CHECK(storm.broken().empty());
}

TEST_CASE(
    "a disk that is full when a file is written ends the run at a step, with 74 and what a save in the step says") {
  const Storm storm;
  for (const Words& ranks :
       {Words{}, Words{"cluster.devices_per_node=2", "strategy=fsdp", "checkpoint.format=sharded"}}) {
    storm.clear();
    REQUIRE(storm.run(all_kept({"train.steps=2"}) + ranks).code == 0);
    // Its operations: the directory, files and their heads, then what the writer does.
    const Outcome outcome = storm.run(all_kept({"train.steps=50", "checkpoint.every=10"}) + ranks,
                                      on(storm, {"FAULTS_AT=20", "FAULTS_DO=fail_on", "FAULTS_ERRNO=ENOSPC"}));
    CAPTURE(outcome.err);
    CHECK(outcome.code == 74);
    CHECK(contains(outcome.err, "No space left on device"));
    CHECK(contains(outcome.err, "earlier checkpoints are whole"));
    CHECK(!contains(outcome.err, "step 50/50"));
    CHECK(storm.names().back() == "step-00000002");
    CHECK(storm.broken().empty());
    CHECK(storm.run(Words{"train.steps=3"} + ranks).code == 0);
  }
}

TEST_CASE("a run whose checkpoints do not fit on the disk is refused before its first step, and so does validate say") {
  const Storm storm;
  const Outcome planned = trainer::tests::trainer(storm.path(), {"plan", "job.yaml", "--json"});
  REQUIRE(planned.code == 0);
  const nlohmann::json checkpoint = nlohmann::json::parse(planned.out)["checkpoint"];
  const long bytes = checkpoint["bytes"];
  CHECK(checkpoint["kept_bytes"] == bytes);
  CHECK(checkpoint["behind"] == true);
  const auto free = [&](long number) {
    return Words{"LD_PRELOAD=" TRAINER_FAULTS, "FAULTS_FREE=" + std::to_string(number)};
  };
  const Words validate{TRAINER_COMMAND, "validate", "--files", "job.yaml"};
  const auto validated = [&](long number) {
    return Process(storm.path(), free(number) + validate, "/usr/bin/env").wait();
  };
  const Outcome refused = storm.run({}, free(2 * bytes - 1));
  CAPTURE(refused.err);
  CHECK(refused.code == 74);
  CHECK(contains(refused.err, "2 more checkpoints need"));
  CHECK(contains(refused.err, "free"));
  CHECK(!contains(refused.err, "step 1"));
  CHECK(storm.names().empty());
  const Outcome said = validated(2 * bytes - 1);
  CHECK(said.code == 74);
  CHECK(contains(said.err, "2 more checkpoints need"));
  CHECK(contains(said.err, "checkpoint.dir"));
  CHECK(validated(2 * bytes).code == 0);
  CHECK(storm.run({"train.steps=2"}, free(bytes)).code == 0);  // one save, and then none
  CHECK(storm.run({}, free(bytes - 1)).code == 74);            // what is there counts
  CHECK(storm.run({}, free(bytes)).code == 0);
  CHECK(storm.run({}, free(0)).code == 0);  // nothing is left to do
}

TEST_SUITE_END();

#endif
