// Schedules from files: what is written is what is read, and each mistake is told with its place.
#include "strategies/pipeline/schedule_file.h"

#include <doctest/doctest.h>

#include "engine/core/error.h"
#include "engine/plan/simulate.h"
#include "strategies/strategies.h"
#include "tests/strategies/sizes.h"
#include "tests/temporary.h"

using namespace trainer;
using namespace trainer::strategies;
using trainer::tests::contains;
using trainer::tests::message_of;

namespace {

std::string written(const Schedule& schedule) {
  std::string text;
  for (const std::vector<Action>& actions : schedule.stages) {
    for (const Action& action : actions)
      text += (text.empty() || text.back() == '\n' ? "" : ", ") + label(action, true);
    text += "\n";
  }
  return text;
}

std::string mistake(const std::string& text) {
  return message_of<DataError>([&] { read_schedule(text, "s.csv"); });
}

}  // namespace

TEST_CASE("every schedule that is written is read as it was") {
  check_all([](const PipelineEntry&, const Sizes& sizes, const Schedule& schedule) -> std::string {
    if (sizes.micro_batches > 20) return "";
    const GivenSchedule given = read_schedule(written(schedule), "s.csv");
    const bool same = given.schedule.stages == schedule.stages &&
                      given.schedule.stage_of_chunk == schedule.stage_of_chunk &&
                      given.micro_batches == sizes.micro_batches;
    return same ? "" : "another schedule";
  });
}

TEST_CASE("comments, blank lines and empty cells are no actions; backwards are all divided or none") {
  const GivenSchedule given =
      read_schedule("# two stages\n\nF0.0, F1.0,, B0.0,B1.0 # first\r\n,F0.1,B0.1,F1.1,I1.1,W1.1\n", "s.csv");
  CHECK(written(given.schedule) ==
        "F0.0, F1.0, I0.0, W0.0, I1.0, W1.0\n"
        "F0.1, I0.1, W0.1, F1.1, I1.1, W1.1\n");
  CHECK(given.micro_batches == 2);
}

TEST_CASE("a mistake in a schedule is told with its line and column") {
  const std::string last = "\nF0.1,B0.1\n";
  CHECK(mistake("") == "s.csv: has no stage; write a line for each, with cells such as F0.0,B0.0");
  for (const char* cell : {"X0.0", "F0", "F.0", "F-1.0", "F0.0x", "F99999999.0", "F0.99999", "0.0"})
    CHECK(mistake(std::string("F0.0, ") + cell + last) ==
          std::string("s.csv:1:7: ") + cell +
              " is no action; write F, B, I or W, the micro-batch, a dot and the chunk, as F0.1");
  CHECK(mistake("F0.0,F0.0,B0.0" + last) == "s.csv:1:6: F0.0 is there twice");
  CHECK(mistake("F0.0,B0.0,F0.1" + last) == "s.csv:2:1: F0.1 runs on stage 1, but chunk 1 is on stage 0");
  CHECK(contains(mistake("F1.0,F0.0,B0.0,B1.0" + last),
                 "s.csv:1:1: F1.0 is out of order: micro-batches pass a chunk one after the other, and F0.0 is next"));
  CHECK(contains(mistake("F0.0,B0.0,I0.0" + last), "s.csv:1:11: I0.0 is out of order"));
  CHECK(mistake("F0.0,B0.0\nF0.2,B0.2\n") == "s.csv: no stage runs chunk 1");
  CHECK(mistake("F0.0,F0.1,B0.1,B0.0\nF0.2,B0.2\n") ==
        "s.csv: stage 0 has 2 of 3 chunks; every stage must have equally many");
  CHECK(mistake("F0.0" + last) == "s.csv: stage 0 lacks B0.0");
  CHECK(mistake("F0.0,F1.0,B0.0,B1.0" + last) == "s.csv: stage 1 lacks F1.1");
  CHECK(mistake("F0.0,I0.0" + last) == "s.csv: stage 0 lacks W0.0");
  CHECK(contains(mistake("B0.0,F0.0" + last), "s.csv: this schedule never ends: stage 0 waits at its action 0, B0.0"));
}
