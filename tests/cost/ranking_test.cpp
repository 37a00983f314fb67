// Which of several candidates is taken.
#include "engine/cost/ranking.h"

#include <doctest/doctest.h>

#include <functional>
#include <vector>

namespace trainer {
namespace {

cost::Scored scored(double us, double gib, const std::function<void(cost::Candidate&)>& change = {},
                    double spread = 0.06) {
  cost::Scored one;
  one.candidate.mesh.set(Axis::shard, 8);
  one.candidate.kind = DataKind::zero1;
  if (change) change(one.candidate);
  one.step_us = us;
  one.spread = spread;
  one.bytes = static_cast<std::int64_t>(gib * (std::int64_t{1} << 30));
  one.fits = gib <= 80;
  return one;
}

std::size_t taken(const std::vector<cost::Scored>& list, Goal goal = Goal::time) {
  return cost::choose(goal, std::int64_t{80} << 30, list);
}

}  // namespace

TEST_CASE("of ties what leaves memory free is taken, then what is simpler, then what is faster") {
  const auto fsdp = [](cost::Candidate& c) { c.kind = DataKind::fsdp; };
  CHECK(taken({scored(1000, 60), scored(990, 60, fsdp)}) == 0);        // simpler
  CHECK(taken({scored(1000, 75), scored(990, 60, fsdp)}) == 1);        // a tie with a tenth of memory free
  CHECK(taken({scored(1000, 60), scored(960, 75, fsdp)}) == 1);        // 4% are more than half of a spread of 6%
  CHECK(taken({scored(1000, 60), scored(960, 60, fsdp, 0.09)}) == 0);  // and less than half of one of 9%
  CHECK(taken({scored(1000, 60), scored(930, 60, fsdp, 0.4)}) == 1);   // but never more than 5% of the time is given up
  CHECK(taken({scored(1000, 79), scored(990, 78, fsdp)}) == 0);        // where nothing leaves a tenth free, the simpler
  CHECK(taken({scored(1000, 60), scored(990, 60)}) == 1);              // equally simple: the faster
  CHECK(taken({scored(1000, 60), scored(900, 81, fsdp)}) == 0);        // what does not fit is no candidate
  CHECK(taken({scored(900, 90), scored(1000, 85)}) == 1);              // nothing fits: what needs least
}

TEST_CASE("another axis has to pay more than the spread of the prediction") {
  const auto pipeline = [](cost::Candidate& c) { c.mesh.set(Axis::pipeline, 2); };
  CHECK(taken({scored(1000, 60), scored(960, 60, pipeline)}) == 0);
  CHECK(taken({scored(1000, 60), scored(930, 60, pipeline)}) == 1);
  CHECK(taken({scored(1000, 60), scored(960, 60, pipeline, 0.02)}) == 1);
  CHECK(taken({scored(1000, 60), scored(960, 60, pipeline, 0.5)}) == 0);
  CHECK(taken({scored(1000, 60), scored(945, 60, pipeline, 0.5)}) == 1);  // no more than 5% is given up
  CHECK(taken({scored(1000, 60), scored(999, 40, pipeline)}, Goal::memory) == 1);
  const auto fsdp = [](cost::Candidate& c) { c.kind = DataKind::fsdp; };
  CHECK(taken({scored(1049, 60), scored(1020, 60, fsdp), scored(990, 60, pipeline)}) ==
        1);  // both together give up no more than 5%
}

}  // namespace trainer
