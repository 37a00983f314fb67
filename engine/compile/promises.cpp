// How promises are corrected: by the most favourable ratio of a plan to its sketch, and of a sketch to its score, for
// each kind.
#include "engine/compile/promises.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/core/parallel.h"

namespace trainer {

using cost::Candidate;
using cost::Scored;

namespace {
constexpr double kUnknown = std::numeric_limits<double>::infinity();
}

Promises::Promises(const cost::SearchSpace& space, cost::ProfileSource& profiles) : space_(space) {
  for (std::size_t lane = 0; lane < num_processors(); ++lane) sketchers_.emplace_back(space, profiles);
}

void Promises::add(std::vector<Scored> scored) {
  entries_.reserve(entries_.size() + scored.size());
  for (Scored& one : scored) entries_.push_back({std::move(one)});
}

Scored Promises::promise(std::size_t index) const {
  const Entry& entry = entries_[index];
  Scored promise = entry.scored;
  if (!entry.sketched)
    if (const auto found = of_score_.find(sketch_kind(promise.candidate)); found != of_score_.end())
      promise.step_us *= found->second;
  if (const auto found = of_sketch_.find(plan_kind(promise.candidate)); found != of_sketch_.end()) {
    if (found->second.time != kUnknown) promise.step_us *= found->second.time;
    promise.bytes = static_cast<std::int64_t>(static_cast<double>(promise.bytes) * found->second.bytes);
  }
  promise.fits = promise.bytes <= space_.limit_bytes;
  return promise;
}

bool Promises::surely_fits(std::size_t index) const {
  constexpr double kMargin = 1.005;
  return kMargin * most_bytes_ * static_cast<double>(entries_[index].scored.bytes) <=
         static_cast<double>(space_.limit_bytes);
}

bool Promises::may_be_within(std::size_t index, double most_us, std::int64_t most_bytes) const {
  const Entry& entry = entries_[index];
  const double least = least_of_sketch_.time * (entry.sketched ? 1 : least_of_score_);
  return entry.scored.step_us * least <= most_us &&
         static_cast<double>(entry.scored.bytes) * least_of_sketch_.bytes <= static_cast<double>(most_bytes);
}

void Promises::sketch(const std::vector<std::size_t>& indices) {
  std::vector<double> us(indices.size());
  for_each_index_in_lanes(indices.size(), sketchers_.size(), [&](std::size_t i, std::size_t lane) {
    us[i] = sketchers_[lane].step_us(entries_[indices[i]].scored.candidate);
  });
  for (std::size_t i = 0; i < indices.size(); ++i) learn_sketch(entries_[indices[i]], us[i]);
}

void Promises::learn_sketch(Entry& entry, double us) {
  entry.sketched = true;
  if (us <= 0 || entry.scored.step_us <= 0) return;
  const double factor = us / entry.scored.step_us;
  const auto [at, first] = of_score_.try_emplace(sketch_kind(entry.scored.candidate), factor);
  if (!first) at->second = std::min(at->second, factor);
  least_of_score_ = std::min(least_of_score_, factor);
  const double more = us - entry.scored.step_us;
  (entry.scored.candidate.size(Axis::pipeline) > 1 ? entry.scored.bubble_us : entry.scored.data_us) += more;
  entry.scored.step_us = us;
}

Promises::Factors Promises::least(const Factors& a, const Factors& b) {
  return {std::min(a.time, b.time), std::min(a.bytes, b.bytes)};
}

void Promises::learn(std::size_t index, const Scored* exact, bool planned) {
  Entry& entry = entries_[index];
  if (exact == nullptr || entry.scored.step_us <= 0 || entry.scored.bytes <= 0) return;
  const Factors now{planned ? exact->step_us / entry.scored.step_us : kUnknown,
                    static_cast<double>(exact->bytes) / static_cast<double>(entry.scored.bytes)};
  const auto [at, first] = of_sketch_.try_emplace(plan_kind(entry.scored.candidate), now);
  if (!first) at->second = least(at->second, now);
  least_of_sketch_ = least(least_of_sketch_, now);
  most_bytes_ = std::max(most_bytes_, now.bytes);
}

// How units of parameters live decides what hides, the schedule which stage waits.
Promises::PlanKind Promises::plan_kind(const Candidate& c) {
  return {static_cast<int>(c.kind), static_cast<int>(c.sharding) * 2 + c.once, (c.size(Axis::tensor) > 1) + c.pairs,
          c.size(Axis::pipeline) > 1 ? 1 + static_cast<int>(c.schedule) : 0};
}

Promises::SketchKind Promises::sketch_kind(const Candidate& c) {
  const PlanKind kind = plan_kind(c);
  return {kind[0], kind[1], kind[2], kind[3], c.virtual_stages, static_cast<int>(c.recompute.mode)};
}

}  // namespace trainer
