// How a choice is made: one loop that plans the most promising candidate, until the one to be taken has a plan.
#include "engine/compile/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "engine/compile/explain.h"
#include "engine/compile/finalists.h"
#include "engine/compile/fixed.h"
#include "engine/compile/hardware.h"
#include "engine/compile/model_graph.h"
#include "engine/compile/optimizers.h"
#include "engine/compile/profile_cache.h"
#include "engine/compile/promises.h"
#include "engine/core/check.h"
#include "engine/cost/ranking.h"
#include "engine/cost/search.h"
#include "engine/job/data_strategies.h"
#include "engine/plan/verify/verify.h"

namespace trainer {
namespace {
using cost::Candidate;
using cost::Scored;
using cost::SearchSpace;

// Whole plans are what a choice spends its time on: many of small models are made, and few of large ones.
constexpr std::int64_t kInstructionsToPlan = 620'000;
// A larger plan is made only of what would be taken: it takes seconds.
constexpr std::int64_t kMostOfOne = 250'000;
// Variants of what would be taken are hardly faster: larger ones are not planned.
constexpr std::int64_t kMostOfVariant = 100'000;
constexpr std::size_t kMostFinalists = 48, kMostBeyondBudget = 3, kMostAlternatives = 24, kMostThatDoNotFit = 8;

class Choice {
 public:
  Choice(const LoadedJob& loaded, const Hardware& hardware)
      : loaded_(loaded),
        hardware_(hardware),
        profiles_(loaded, hardware),
        space_(search_space(loaded.job, hardware, state_bytes(loaded))),
        promises_(space_, profiles_),
        finalists_(loaded, hardware, profiles_.pieces(), space_.limit_bytes) {}

  CompiledJob run() {
    cost::SearchResult found = cost::search(space_, profiles_);
    if (found.scored.empty())
      throw JobError(
          {loaded_.at("strategy", "there is no way to train this on the cluster: " +
                                      (found.impossible.empty() ? "no candidate" : found.impossible.front()))});
    promises_.add(std::move(found.scored));
    do plan_promising();
    while (completes_one());
    finalists_.plan(variants(this->taken()));
    while (completes_one()) continue;
    const std::size_t taken = this->taken();
    CompiledJob result = finalists_.take(taken);
    verify(result.plan);
    tell(result, taken, found.impossible);
    return result;
  }

 private:
  static constexpr std::size_t kPlanned = std::numeric_limits<std::size_t>::max();

  struct Wanted {
    std::size_t index;  // of promises_
    std::int64_t most_instructions;
    bool would_be_taken;
  };
  static constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

  // Plans and promises side by side: what would be taken if every promise were kept.
  struct Field {
    std::vector<Scored> list;
    std::vector<std::size_t> index;  // of promises_; kPlanned
  };

  void plan_promising() {
    while (true) {
      if (!finalists_.all().empty() && !finalists_.any_fits()) add_frugal();
      const std::vector<std::size_t> next = next_together();
      if (next.empty()) return;
      std::vector<Scored> promised;
      for (const std::size_t index : next) promised.push_back(promises_.known(index));
      const std::vector<Finalists::Planned> exact = finalists_.plan(promised);
      for (std::size_t i = 0; i < next.size(); ++i)
        promises_.learn(next[i], exact[i].scored ? &*exact[i].scored : nullptr, exact[i].played);
    }
  }

  // Completes what would be taken where that is a draft, which may turn out not to fit; else the fastest, which decides
  // what is a tie, though only a few times: making a list may take a second. False: nothing was left to complete.
  bool completes_one() {
    if (finalists_.all().empty()) throw finalists_.refused().front();
    std::size_t one = taken();
    if (finalists_.is_complete(one)) {
      one = fastest().value_or(one);
      if (finalists_.is_complete(one) || probes_ == kMostProbes) return false;
      ++probes_;
    }
    const Candidate candidate = finalists_.all()[one].scored.candidate;
    const std::optional<Scored> exact = finalists_.complete(one);
    for (std::size_t i = 0; i < promises_.size(); ++i)
      if (promises_.planned(i) && cost::same(promises_.known(i).candidate, candidate))
        promises_.learn(i, exact ? &*exact : nullptr, exact.has_value());
    return true;
  }

  // Of those that fit.
  std::optional<std::size_t> fastest() const {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < finalists_.all().size(); ++i) {
      const Scored& one = finalists_.all()[i].scored;
      if (one.fits && (!best || measure(one) < measure(finalists_.all()[*best].scored))) best = i;
    }
    return best;
  }

  // The candidate to plan next and, once a promise has not been kept, some that would be next without it. What is only
  // faster than what would be taken is planned in any case, so there are several of it. What would be taken after
  // another may be planned in vain: one, where a thread is free for it and the plan is small.
  std::vector<std::size_t> next_together() {
    const bool begun = !finalists_.all().empty();
    std::vector<std::size_t> together;
    std::size_t most = begun ? 2 : 1;
    while (together.size() < most) {
      const std::optional<Wanted> wanted = next();
      if (!wanted) break;
      const bool in_vain = !together.empty() && wanted->would_be_taken;
      if (in_vain && (promises_.known(wanted->index).candidate.size(Axis::pipeline) > 1 ||
                      instructions(wanted->index) > kMostOfOne))
        break;
      promises_.set_planned(wanted->index);
      together.push_back(wanted->index);
      if (begun && !wanted->would_be_taken) most = kFasterTogether;
      if (promises_.known(wanted->index).candidate.size(Axis::pipeline) > kFewStages) break;
    }
    return together;
  }

  // The candidate to plan next. Promises are taken at their word: if one of them would be taken it is looked at more
  // closely, and in the end planned. If none of them would, none of them can change the choice. The fastest decides
  // what a tie is, and so it is planned too, unless its plan is large; and others that are faster than what is taken
  // where that is cheap.
  std::optional<Wanted> next() {
    if (finalists_.all().size() + finalists_.refused().size() >= kMostFinalists) return std::nullopt;
    const bool sure = !finalists_.all().empty() && !finalists_.any_fits();  // memory has disappointed
    if (finalists_.num_planned() >= (sure ? kMostWithoutFit : kMostBeyondBudget) && budget() <= 0) return std::nullopt;
    while (true) {
      const Field field = this->field(sure);
      if (field.list.empty()) {
        const std::optional<std::size_t> least = least_bytes();
        return least ? std::optional(Wanted{*least, kNoLimit, true}) : std::nullopt;
      }
      const std::optional<Wanted> wanted = this->wanted(field);
      if (!wanted) return std::nullopt;
      if (!promises_.sketched(wanted->index) && sketches_ < kMostSketches)
        sketch(field, wanted->index);
      else if (instructions(wanted->index) > wanted->most_instructions)
        promises_.set_aside(wanted->index);
      else
        return wanted;
    }
  }

  // Of the step in its plan, about: a backward pass is two forward ones, and recomputation or collectives come on top.
  std::int64_t instructions(std::size_t index) {
    return static_cast<std::int64_t>(7 * profiles_.num_nodes() / 2) * promises_.listed(index);
  }

  std::int64_t budget() const { return kInstructionsToPlan - finalists_.instructions(); }

  std::optional<Wanted> wanted(const Field& field) const {
    const std::size_t taken = cost::choose(loaded_.job.goal, space_.limit_bytes, field.list);
    if (field.index[taken] != kPlanned) return Wanted{field.index[taken], kNoLimit, true};
    if (budget() <= 0) return std::nullopt;
    const std::vector<std::size_t> order = by_measure(field);
    for (const std::size_t i : order) {
      if (i == taken) break;
      if (field.index[i] != kPlanned) return Wanted{field.index[i], i == order.front() ? kMostOfOne : budget(), false};
    }
    return std::nullopt;
  }

  // Positions in the field, the fastest first.
  std::vector<std::size_t> by_measure(const Field& field) const {
    std::vector<std::size_t> order(field.list.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return measure(field.list[a]) < measure(field.list[b]); });
    return order;
  }

  // A candidate and the fastest that are only scored: what is learned of these corrects many others.
  void sketch(const Field& field, std::size_t wanted) {
    std::vector<std::size_t> together{wanted};
    for (const std::size_t i : by_measure(field)) {
      if (together.size() == kSketchesTogether) break;
      const std::size_t index = field.index[i];
      if (index != kPlanned && index != wanted && !promises_.sketched(index)) together.push_back(index);
    }
    promises_.sketch(together);
    sketches_ += kSketchesTogether;
  }

  // Everything that fits, as far as that is promised or sure, and is not so slow that it could not be taken.
  Field field(bool sure) const {
    Field field;
    double least = std::numeric_limits<double>::infinity(), spread = cost::kUsualSpread;
    for (const Finalist& one : finalists_.all()) {
      if (!one.scored.fits) continue;
      if (measure(one.scored) < least) least = measure(one.scored), spread = one.scored.spread;
      field.list.push_back(one.scored);
      field.index.push_back(kPlanned);
    }
    const bool memory = loaded_.job.goal == Goal::memory;
    for (std::size_t i = 0; i < promises_.size(); ++i) {
      const double most = kReach * least;
      if (promises_.planned(i) || promises_.aside(i) || (sure && !promises_.surely_fits(i))) continue;
      if (!promises_.may_be_within(i, memory ? HUGE_VAL : most, space_.limit_bytes)) continue;
      Scored promise = promises_.promise(i);
      if (!promise.fits || measure(promise) > most) continue;
      promise.spread = spread;
      least = std::min(least, measure(promise));
      field.list.push_back(promise);
      field.index.push_back(i);
    }
    return field;
  }

  // Nothing that was planned fits: now time matters less than memory.
  void add_frugal() {
    if (std::exchange(frugal_, true)) return;
    std::vector<Scored> added;
    for (const Scored& one : cost::frugal(space_, profiles_)) {
      if (added.size() == kMostFrugal) break;
      bool known = false;
      for (std::size_t i = 0; i < promises_.size() && !known; ++i)
        known = cost::same(promises_.known(i).candidate, one.candidate);
      if (!known) added.push_back(one);
    }
    promises_.add(std::move(added));
  }

  // Where nothing promises to fit: what needs the least memory, if that is anywhere near what there is.
  std::optional<std::size_t> least_bytes() const {
    if (finalists_.all().size() >= kMostWithoutFit) return std::nullopt;
    std::optional<std::size_t> best;
    auto least = static_cast<std::int64_t>(kDoubtful * static_cast<double>(space_.limit_bytes));
    for (std::size_t i = 0; i < promises_.size(); ++i) {
      if (promises_.planned(i)) continue;
      const std::int64_t bytes = promises_.promise(i).bytes;
      if (bytes < least || (finalists_.all().empty() && !best)) least = bytes, best = i;
    }
    return best;
  }

  std::size_t taken() const {
    std::vector<Scored> exact;
    for (const Finalist& one : finalists_.all()) exact.push_back(one.scored);
    return cost::choose(loaded_.job.goal, space_.limit_bytes, exact);
  }

  // How far gathers run ahead and how large buckets are: no score knows them, so they are tried on the one that would
  // be taken.
  std::vector<Scored> variants(std::size_t taken) const {
    const Scored& of = finalists_.all()[taken].scored;
    const Candidate& c = of.candidate;
    if (!loaded_.job.strategy.free.data || c.data_ranks() == 1 || !finalists_.any_fits()) return {};
    if (finalists_.instructions(taken) > kMostOfVariant) return {};
    std::vector<Scored> result;
    if (record_of(c.kind, c.sharding).takes("prefetch")) {
      result.push_back(of);
      result.back().candidate.prefetch = 2;
    } else if (loaded_.job.strategy.data.bucket_mb == DataStrategyJob{}.bucket_mb) {
      for (double size : {5.0, 100.0}) {
        result.push_back(of);
        result.back().candidate.bucket_mb = size;
      }
    }
    return result;
  }

  double measure(const Scored& one) const { return cost::measure(loaded_.job.goal, one); }

  void tell(CompiledJob& result, std::size_t taken, const std::vector<std::string>& impossible) {
    const Finalist& winner = finalists_.all()[taken];
    std::vector<Finalist> others;
    for (std::size_t i = 0; i < finalists_.all().size(); ++i)
      if (i != taken) others.push_back(finalists_.all()[i]);
    const auto better = [](const Finalist& a, const Finalist& b) {
      if (a.scored.fits != b.scored.fits) return a.scored.fits;
      return a.scored.fits ? a.scored.step_us < b.scored.step_us : a.scored.bytes < b.scored.bytes;
    };
    add_scored(others, winner);
    std::stable_sort(others.begin(), others.end(), better);
    result.strategy_why = why(winner, others, impossible, space_.limit_bytes, loaded_.job.goal);
    if (loaded_.job.goal == Goal::cost) result.strategy_why += cheaper_with_fewer_nodes(winner);
    result.alternatives.push_back(alternative(winner, ""));
    for (const Finalist& one : others)
      result.alternatives.push_back(alternative(one, why_not(one, winner, space_.limit_bytes, loaded_.job.goal)));
  }

  // Whether fewer nodes would make a step cheaper. Those are only scored: the job says how many it has.
  std::string cheaper_with_fewer_nodes(const Finalist& winner) {
    const auto device_time = [&](double us, int ranks) { return us * ranks; };
    const double here = device_time(winner.scored.step_us, space_.world_size);
    double least = 0.98 * here;
    std::string cheaper;
    for (std::int64_t nodes = 1; nodes < loaded_.job.cluster.nodes; ++nodes) {
      if (loaded_.job.cluster.nodes % nodes != 0) continue;
      Job fewer = loaded_.job;
      fewer.cluster.nodes = nodes;
      fewer.cluster.devices_per_node = space_.ranks_per_node;
      const cost::SearchResult found = cost::search(search_space(fewer, hardware_, space_.state_bytes), profiles_);
      if (found.scored.empty() || !found.scored.front().fits) continue;
      const Scored& best = found.scored.front();
      if (const double each = device_time(best.step_us, best.candidate.mesh.world_size()); each < least) {
        least = each;
        cheaper =
            fmt::format(" On {} of the {} nodes a step would cost {:.0f}% less and take {:.1f} times as long: {}.",
                        nodes, loaded_.job.cluster.nodes, 100 * (1 - each / here), best.step_us / winner.scored.step_us,
                        cost::text_of(best.candidate));
      }
    }
    return cheaper;
  }

  // Of those that were only scored the best of each mesh and kind.
  void add_scored(std::vector<Finalist>& others, const Finalist& winner) const {
    std::set<cost::MeshAndKind> reported{mesh_and_kind(winner.scored.candidate)};
    for (const Finalist& one : others) reported.insert(mesh_and_kind(one.scored.candidate));
    for (std::size_t i = 0; i < promises_.size(); ++i) {
      if (others.size() >= (winner.scored.fits ? kMostAlternatives : kMostThatDoNotFit)) return;
      if (reported.insert(mesh_and_kind(promises_.known(i).candidate)).second) others.push_back({promises_.promise(i)});
    }
  }

  Alternative alternative(const Finalist& one, std::string rejected) const {
    const Candidate& c = one.scored.candidate;
    return {strategy_of(loaded_.job.strategy, c, profiles_.pieces()),
            c.mesh,
            c.micro,
            c.recompute,
            cost::text_of(c),
            one.scored.step_us,
            one.scored.bytes,
            one.basis,
            std::move(rejected)};
  }

  static constexpr double kReach = 1.001 * (1 + cost::kMostTie);  // of the least time: what can be taken
  static constexpr double kDoubtful = 1.05;  // so much above the limit, what is scored may fit all the same
  static constexpr std::size_t kMostWithoutFit = 4, kMostFrugal = 64, kSketchesTogether = 8, kMostSketches = 512,
                               kFasterTogether = 4, kMostProbes = 2;
  static constexpr int kFewStages = 4;

  const LoadedJob& loaded_;
  const Hardware& hardware_;
  ProfileCache profiles_;
  const SearchSpace space_;
  Promises promises_;
  bool frugal_ = false;  // whether they end with those of cost::frugal
  std::size_t sketches_ = 0, probes_ = 0;
  Finalists finalists_;
};

// On one rank there is nothing to share, and what fits without recomputation is taken.
std::optional<CompiledJob> on_one_rank(const LoadedJob& loaded, const Hardware& hardware) {
  if (world_size_of(loaded.job) > 1) return std::nullopt;
  LoadedJob job = loaded;
  job.job.strategy.free = {};
  if (job.job.activation_checkpointing.mode == CheckpointingMode::automatic) job.job.activation_checkpointing = {};
  CompiledJob compiled = compile_fixed(job, hardware, Purpose::train);
  if (!compiled.fits && loaded.job.activation_checkpointing.mode == CheckpointingMode::automatic) return std::nullopt;
  compiled.strategy_why = "there is nothing to share";
  return compiled;
}

}  // namespace

bool leaves_choices(const Job& job) {
  return job.strategy.free.any() || job.activation_checkpointing.mode == CheckpointingMode::automatic;
}

CompiledJob choose(const LoadedJob& loaded, const Hardware& hardware) {
  if (!loaded.job.strategy.pipeline.schedule_file.empty())
    throw JobError({loaded.at("strategy.pipeline.schedule.file",
                              "a schedule from a file belongs to one strategy: leave nothing of `strategy` and "
                              "`activation_checkpointing` to auto")});
  if (std::optional<CompiledJob> alone = on_one_rank(loaded, hardware)) return std::move(*alone);
  CHECK(hardware.machine != nullptr, "a choice needs a machine to predict times for");
  return Choice(loaded, hardware).run();
}

}  // namespace trainer
