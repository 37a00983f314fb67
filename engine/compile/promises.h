// Promises: what the candidates of a search can be expected to be, at three prices. A score costs microseconds and adds
// up; a sketch (engine/cost/sketch.h) costs a millisecond and plays what the score adds up; a plan is the truth. What
// is learned of some candidates corrects the promises of others of their kind, in the most favourable case.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <vector>

#include "engine/cost/search.h"
#include "engine/cost/sketch.h"

namespace trainer {

class Promises {
 public:
  /// Both outlive it.
  Promises(const cost::SearchSpace& space, cost::ProfileSource& profiles);

  /// Takes over more candidates.
  void add(std::vector<cost::Scored> scored);

  std::size_t size() const { return entries_.size(); }
  /// As it is known: scored, or sketched.
  const cost::Scored& known(std::size_t index) const { return entries_[index].scored; }
  /// Time, memory and whether that fits, corrected.
  cost::Scored promise(std::size_t index) const;
  /// Whether it fits even if its plan needs more than it promises by as much as any plan so far, and a little more.
  bool surely_fits(std::size_t index) const;
  /// False where the promise is certainly worse than these; cheaper than the promise itself.
  bool may_be_within(std::size_t index, double most_us, std::int64_t most_bytes) const;

  bool sketched(std::size_t index) const { return entries_[index].sketched; }
  /// Several, at the same time.
  void sketch(const std::vector<std::size_t>& indices);

  /// The micro-batches that its plan lists.
  int listed(std::size_t index) { return sketchers_.front().listed(entries_[index].scored.candidate); }

  bool planned(std::size_t index) const { return entries_[index].planned; }
  /// It is being planned: what is learned of it comes later.
  void set_planned(std::size_t index) { entries_[index].planned = true; }
  /// It is not to be planned.
  void set_aside(std::size_t index) { entries_[index].aside = true; }
  bool aside(std::size_t index) const { return entries_[index].aside; }
  /// `exact`: null where the planner refuses it. Of what was not planned, since it cannot fit, the bytes are learned.
  void learn(std::size_t index, const cost::Scored* exact, bool planned);

 private:
  using SketchKind = std::array<int, 6>;
  using PlanKind = std::array<int, 4>;
  struct Entry {
    cost::Scored scored;
    bool sketched = false, planned = false, aside = false;
  };
  struct Factors {
    double time = 1, bytes = 1;
  };
  void learn_sketch(Entry& entry, double us);
  static Factors least(const Factors& a, const Factors& b);
  static SketchKind sketch_kind(const cost::Candidate& candidate);
  static PlanKind plan_kind(const cost::Candidate& candidate);

  const cost::SearchSpace& space_;
  std::deque<cost::Sketcher> sketchers_;  // of each lane
  std::vector<Entry> entries_;
  std::map<SketchKind, double> of_score_;  // the sketch's time over the score's
  std::map<PlanKind, Factors> of_sketch_;  // the plan's over the sketch's
  double least_of_score_ = 1, most_bytes_ = 1;
  Factors least_of_sketch_;
};

}  // namespace trainer
