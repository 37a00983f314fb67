// The curve of memory by category against the planner's own.
#include "engine/report/memory_curve.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "engine/plan/memory.h"
#include "tests/train/tiny_jobs.h"

using namespace trainer;
using namespace trainer::tests;
using namespace trainer::report;

namespace {

std::int64_t sum_at(const MemoryCurve& curve, std::size_t point) {
  std::int64_t sum = 0;
  for (const auto& category : curve.live) sum += category[point];
  return sum;
}

}  // namespace

TEST_CASE("the categories of a curve add up to the live bytes, and few points keep the peak") {
  const TinyJobs jobs;
  const CompiledJob job = compiled(jobs.load("gpt2", "run", {"cluster.devices_per_node=2", "strategy=fsdp"}));
  const Role& role = job.plan.roles.front();
  for (const Program& program : role.programs) {
    CAPTURE(std::string(name_of(program.kind)));
    const std::vector<std::int64_t> live = live_bytes(role, program);
    const auto peak = std::max_element(live.begin(), live.end());
    const MemoryCurve whole = memory_curve(role, program, live.size() + 1);
    REQUIRE(whole.at.size() == live.size());
    for (std::size_t i = 0; i < live.size(); ++i) CHECK(sum_at(whole, i) == live[i]);
    if (live.empty()) continue;
    CHECK(whole.peak == peak - live.begin());
    CHECK(whole.peak_bytes == *peak);
    for (const std::size_t points : {1, 3, 7}) {
      const MemoryCurve few = memory_curve(role, program, points);
      CHECK(few.at.size() <= points);
      CHECK(few.peak == whole.peak);
      std::int64_t most = 0;
      for (std::size_t i = 0; i < few.at.size(); ++i) most = std::max(most, sum_at(few, i));
      CHECK(most == *peak);
    }
  }
}
