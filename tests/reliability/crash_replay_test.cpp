// Whatever the system does at any operation of a save: the run ends with 74 or goes on, every checkpoint that can be
// seen is whole, one can always be gone on from, and a clean run afterwards ends with the bits of a run that nothing
// happened to.
#include <doctest/doctest.h>

#include <memory>
#include <sstream>

#include "tests/reliability/storm.h"

using namespace trainer::tests;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
TEST_SUITE_BEGIN("crash_replay");
TEST_CASE("faults") { MESSAGE("not run: a sanitizer must be the first library of a process"); }
TEST_SUITE_END();
#else

namespace {

const std::string kLast = "step-00000006";

struct Fault {
  std::string action, error;  // FAULTS_DO, FAULTS_ERRNO
};

const std::vector<Fault> kFaults{{"kill", ""},    {"half", ""},       {"fail", "ENOSPC"}, {"fail_on", "ENOSPC"},
                                 {"fail", "EIO"}, {"fail_on", "EIO"}, {"fail", "EDQUOT"}, {"fail_on", "EDQUOT"}};

std::string words_of(const std::string& error) {
  return error == "ENOSPC"   ? "No space left on device"
         : error == "EDQUOT" ? "Disk quota exceeded"
                             : "Input/output error";
}

Words under_faults(const Storm& storm, const Words& more) {
  return Words{"LD_PRELOAD=" TRAINER_FAULTS, "FAULTS_IN=" + storm.checkpoints()} + more;
}

// A run that saves step 4, with `overrides` also others, and begins with the checkpoints of the folder `begin`.
class Replay {
 public:
  Replay(const Storm& storm, std::string begin, Words settings, Words overrides = {})
      : storm_(storm), begin_(std::move(begin)), settings_(std::move(settings)), overrides_(std::move(overrides)) {
    storm_.copy(begin_, "ck");
    for (const std::string& name : storm_.broken()) damaged_ = storm_.weights(name);
    const Outcome outcome =
        storm_.run(overrides_, under_faults(storm_, settings_ + Words{"FAULTS_LOG=" + storm_.path("operations")}));
    REQUIRE(outcome.code == 0);
    std::istringstream lines(contents_of(storm_.path("operations")));
    for (std::string line; std::getline(lines, line);) operations_.push_back(line);
    std::filesystem::remove(storm_.path("operations"));
    REQUIRE(storm_.run(overrides_ + Words{"train.steps=6"}).code == 0);
    expected_ = storm_.weights(kLast);
    expected_names_ = storm_.names();
    REQUIRE(!expected_.empty());
  }

  std::size_t size() const { return operations_.size(); }

  void replay(std::size_t number, const Fault& fault) const {
    CAPTURE(operations_[number - 1]);
    CAPTURE(number);
    CAPTURE(fault.action);
    CAPTURE(fault.error);
    storm_.copy(begin_, "ck");
    const Outcome outcome =
        storm_.run(overrides_,
                   under_faults(storm_, settings_ + Words{"FAULTS_AT=" + std::to_string(number),
                                                          "FAULTS_DO=" + fault.action, "FAULTS_ERRNO=" + fault.error}));
    CAPTURE(outcome.err);
    check_end(outcome, operations_[number - 1], fault);
    const Words broken = storm_.broken();
    for (const std::string& name : broken) CHECK(storm_.weights(name) == damaged_);
    CHECK(can_go_on());
    const Outcome clean = storm_.run(overrides_ + Words{"train.steps=6"});
    CHECK_MESSAGE(clean.code == 0, clean.err);
    if (damaged_.empty()) CHECK(!contains(clean.err, "damaged"));
    CHECK(storm_.weights(kLast) == expected_);
    CHECK(storm_.names() == expected_names_);
  }

 private:
  // What could not be removed costs no run.
  void check_end(const Outcome& outcome, const std::string& operation, const Fault& fault) const {
    if (fault.error.empty()) {
      CHECK(outcome.code == 128 + 9);
      return;
    }
    const std::string left = storm_.checkpoints() + "/.";  // the store's own, removed at the end
    for (const std::string& own :
         {"unlink " + left + "owner", "unlink " + left + "carried", "rmdir " + left + "carried"})
      if (operation.starts_with(own) && outcome.code == 0) return;
    CHECK(contains(outcome.err, words_of(fault.error)));
    const bool went_on = outcome.code == 0 && contains(outcome.err, "the run goes on");
    CHECK((went_on || outcome.code == 74));
    if (operation == "mkdir " + storm_.checkpoints()) return;
    CHECK((went_on || contains(outcome.err, "checkpoints cannot be saved here") ||
           contains(outcome.err, "the same command goes on from the newest")));
    if (fault.action == "fail" && !went_on)
      for (const std::string& name : storm_.names()) CHECK_FALSE(name.ends_with(".tmp"));
  }

  // Where names cannot be exchanged, the whole one may for a moment be the one that stepped aside.
  bool can_go_on() const {
    const Words names = storm_.names();
    return std::any_of(names.begin(), names.end(),
                       [](const std::string& name) { return !name.starts_with('.') || name.ends_with(".old"); });
  }

  const Storm& storm_;
  const std::string begin_;
  const Words settings_, overrides_;
  Words operations_, expected_names_;
  std::map<std::string, std::string> expected_;  // weights at the end
  std::map<std::string, std::string> damaged_;   // of the checkpoint that is damaged from the beginning, if one is
};

// Every operation under every fault in the long form; else every operation once, under faults that take turns.
void replay_all(const Replay& replay, std::size_t stride) {
  REQUIRE(replay.size() > 20);
  std::size_t runs = 0;
  for (std::size_t number = 1; number <= replay.size(); number += is_long() ? 1 : stride)
    for (std::size_t i = 0; i < kFaults.size(); ++i)
      if (is_long() || (number / stride) % kFaults.size() == i) {
        replay.replay(number, kFaults[i]);
        ++runs;
      }
  MESSAGE(replay.size(), " operations, ", runs, " faults");
}

// `begin` gets step 2, `both` steps 2 and 4, `damaged` the same with step 4 damaged, so that a run goes on from 2 and
// replaces it.
void prepare(const Storm& storm) {
  REQUIRE(storm.run({"train.steps=2"}).code == 0);
  storm.copy("ck", "begin");
  REQUIRE(storm.run({"checkpoint.keep=2"}).code == 0);
  storm.copy("ck", "both");
  storm.copy("ck", "damaged");
  std::ofstream(storm.path("damaged/step-00000004/model.safetensors"), std::ios::app) << "x";
}

}  // namespace

TEST_SUITE_BEGIN("crash_replay");

TEST_CASE("a fault at any operation of a save and of the removal that follows it") {
  const Storm storm;
  prepare(storm);
  replay_all(Replay(storm, "begin", {}), 1);
}

TEST_CASE("a fault at any operation while a checkpoint is written behind a step") {
  const Storm storm;
  prepare(storm);
  replay_all(Replay(storm, "begin", {}, {"checkpoint.every=1"}), 3);
}

TEST_CASE("a fault at any operation of a save that replaces a checkpoint") {
  const Storm storm;
  prepare(storm);
  SUBCASE("by an exchange of names") { replay_all(Replay(storm, "damaged", {}), 2); }
  SUBCASE("where names cannot be exchanged") { replay_all(Replay(storm, "damaged", {"FAULTS_NO_EXCHANGE=1"}), 2); }
}

TEST_CASE("a checkpoint that cannot be read is not damaged: no command takes an older one, and nothing is written") {
  const Storm storm;
  prepare(storm);
  for (const std::string file : {"model.safetensors", "optimizer.safetensors", "manifest.json"}) {
    CAPTURE(file);
    storm.copy("both", "ck");
    const auto before = storm.weights("step-00000004");
    const Words settings{"LD_PRELOAD=" TRAINER_FAULTS, "FAULTS_READ=step-00000004/" + file};
    const Outcome outcome = storm.run({"train.steps=6"}, settings);
    CHECK(outcome.code == 74);
    CHECK(contains(outcome.err, "step-00000004/" + file + ": reading: Input/output error"));
    CHECK(contains(outcome.err, "no older one is used in its place"));
    CHECK(storm.names() == Words{"step-00000002", "step-00000004"});
    CHECK(storm.weights("step-00000004") == before);
    CHECK(Process(storm.path(), settings + Words{TRAINER_COMMAND, "inspect", "ck"}, "/usr/bin/env").wait().code == 74);
    CHECK(
        Process(storm.path(), settings + Words{TRAINER_COMMAND, "sample", "job.yaml", "--tokens", "1"}, "/usr/bin/env")
            .wait()
            .code == 74);
    CHECK(storm.run({"train.steps=6"}).code == 0);
  }
}

TEST_SUITE_END();

#endif
