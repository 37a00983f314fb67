// The rules of ranking.h, each of which leaves fewer candidates.
#include "engine/cost/ranking.h"

#include <algorithm>
#include <utility>

namespace trainer::cost {

double measure(Goal goal, const Scored& one) {
  return goal == Goal::memory ? static_cast<double>(one.bytes) : one.step_us;
}

double tie_of(double spread) { return std::clamp(spread / 2, kEqual, kMostTie); }

double axis_tie_of(double spread) { return std::clamp(spread, kEqual, kMostTie); }

bool has_headroom(const Scored& one, std::int64_t limit_bytes) {
  return static_cast<double>(one.bytes) <= (1 - kHeadroom) * static_cast<double>(limit_bytes);
}

namespace {

// The candidates that are left, as indices; each rule removes some and never all.
class Rules {
 public:
  Rules(Goal goal, const std::vector<Scored>& scored) : goal_(goal), scored_(scored) {
    for (std::size_t i = 0; i < scored.size(); ++i)
      if (scored[i].fits) left_.push_back(i);
  }

  bool any() const { return !left_.empty(); }

  template <typename Value>
  std::size_t least(Value&& value) const {
    return *std::min_element(left_.begin(), left_.end(),
                             [&](std::size_t a, std::size_t b) { return value(scored_[a]) < value(scored_[b]); });
  }
  const Scored& fastest() const {
    return scored_[least([&](const Scored& one) { return measure(goal_, one); })];
  }

  template <typename Wanted>
  void keep(Wanted&& wanted) {
    std::vector<std::size_t> kept;
    for (const std::size_t i : left_)
      if (wanted(scored_[i])) kept.push_back(i);
    if (!kept.empty()) left_ = std::move(kept);
  }
  void keep_near(double share) {
    const double most = (1 + share) * measure(goal_, fastest());
    keep([&](const Scored& one) { return measure(goal_, one) <= most; });
  }

 private:
  Goal goal_;
  const std::vector<Scored>& scored_;
  std::vector<std::size_t> left_;
};

}  // namespace

std::size_t choose(Goal goal, std::int64_t limit_bytes, const std::vector<Scored>& scored) {
  Rules rules(goal, scored);
  if (!rules.any())
    return static_cast<std::size_t>(
        std::min_element(scored.begin(), scored.end(),
                         [](const Scored& a, const Scored& b) { return a.bytes < b.bytes; }) -
        scored.begin());
  if (goal == Goal::memory) {
    rules.keep_near(kEqual);
    return rules.least([](const Scored& one) { return one.step_us; });
  }
  const Scored& fastest = rules.fastest();
  Rules near = rules;
  near.keep_near(axis_tie_of(fastest.spread));
  const int axes = scored[near.least([](const Scored& one) { return one.candidate.num_axes(); })].candidate.num_axes();
  rules.keep([&](const Scored& one) { return one.candidate.num_axes() <= axes; });
  const double most = (1 + kMostTie) * measure(goal, fastest);
  rules.keep([&](const Scored& one) { return measure(goal, one) <= most; });
  rules.keep_near(tie_of(rules.fastest().spread));
  rules.keep([&](const Scored& one) { return has_headroom(one, limit_bytes); });
  return rules.least([](const Scored& one) { return std::pair(complexity(one.candidate), one.step_us); });
}

const Scored& likeliest(Goal goal, std::int64_t limit_bytes, const std::vector<Scored>& scores) {
  std::vector<Scored> scored = scores;
  for (Scored& one : scored) one.spread = kUsualSpread;
  return scores[choose(goal, limit_bytes, scored)];
}

}  // namespace trainer::cost
