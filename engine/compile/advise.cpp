// Each piece of advice is one search of a changed job, beside the score of the job as it was compiled.
#include "engine/compile/advise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/compile/fixed.h"
#include "engine/compile/optimizers.h"
#include "engine/compile/profile_cache.h"
#include "engine/core/amounts.h"
#include "engine/cost/ranking.h"
#include "engine/cost/search.h"
#include "engine/transform/transform.h"

namespace trainer {
namespace {

constexpr double kWorthSaying = 0.03;      // of the time of a sample; less is within what scores are off
constexpr std::int64_t kRowMultiple = 64;  // rows of a vocabulary: what tiles of tensor cores divide

class Advisor {
 public:
  Advisor(const LoadedJob& loaded, const Hardware& hardware, const CompiledJob& compiled, double step_us)
      : loaded_(loaded), job_(loaded.job), hardware_(hardware), compiled_(compiled), step_us_(step_us) {}

  std::vector<Suggestion> run() {
    divisible_batch();
    open_micro();
    padded_vocabulary();
    other_update();
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Found& a, const Found& b) { return a.of_sample < b.of_sample; });
    std::vector<Suggestion> result;
    for (Found& one : found_) result.push_back(std::move(one.suggestion));
    return result;
  }

 private:
  struct Found {
    Suggestion suggestion;
    double of_sample;  // the time of a sample as a share of what it is
  };

  std::optional<cost::Scored> best_of(const LoadedJob& loaded) const {
    ProfileCache profiles(loaded, hardware_);
    const cost::SearchSpace space = search_space(loaded.job, hardware_, state_bytes(loaded));
    const cost::SearchResult found = cost::search(space, profiles);
    if (found.scored.empty() || !found.scored.front().fits) return std::nullopt;
    return cost::likeliest(loaded.job.goal, space.limit_bytes, found.scored);
  }

  // What the compiled plan is scored at; 0: it has no score.
  double score() {
    if (!score_) {
      const std::optional<cost::Scored> one = best_of(as_compiled(loaded_, compiled_));
      score_ = one ? one->step_us : 0;
    }
    return *score_;
  }

  void add(std::string override, double scored_us, std::int64_t batch, const std::string& what,
           const std::string& besides = "") {
    if (score() <= 0) return;
    const double us = step_us_ * scored_us / score(),
                 share = us / static_cast<double>(batch) * static_cast<double>(job_.train.batch.global) / step_us_;
    if (share > 1 - kWorthSaying) return;
    found_.push_back({{{std::move(override)},
                       fmt::format("{}a step of about {}, {:.0f}% less time a sample{}", what, time_text(us),
                                   100 * (1 - share), besides),
                       us},
                      share});
  }

  // Ranks that a batch does not divide over go to axes that cost more.
  void divisible_batch() {
    const std::int64_t world = world_size_of(job_), micro = job_.train.batch.micro.value_or(1),
                       global = job_.train.batch.global, by = world * micro;
    if (world == 1 || !job_.strategy.free.data || !job_.strategy.free.pipeline || global % by == 0 ||
        compiled_.batch.data_ranks == world)
      return;
    const std::int64_t below = global / by * by, above = below + by,
                       nearest = below > 0 && global - below <= above - global ? below : above,
                       other = nearest == below ? above : below;
    if (4 * std::abs(nearest - global) > global) return;  // that would be another training
    LoadedJob changed = loaded_;
    changed.job.train.batch.global = nearest;
    const std::optional<cost::Scored> best = best_of(changed);
    if (!best) return;
    add(fmt::format("train.batch.global={}", nearest), best->step_us, nearest, cost::text_of(best->candidate) + ": ",
        other > 0 ? fmt::format("; {} divides over {} ranks too", other, world) : "");
  }

  void open_micro() {
    if (!job_.train.batch.micro) return;
    LoadedJob changed = loaded_;
    changed.job.train.batch.micro.reset();
    const std::optional<cost::Scored> best = best_of(changed);
    if (!best || best->candidate.micro == *job_.train.batch.micro) return;
    add("train.batch.micro=auto", best->step_us, job_.train.batch.global,
        fmt::format("{} instead of the job's micro-batch of {}: ", cost::text_of(best->candidate),
                    *job_.train.batch.micro));
  }

  void padded_vocabulary() {
    const std::int64_t rows = compiled_.vocabulary.value_or(0),
                       padded = (rows + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
    const std::string name = parameter_with(rows);
    if (rows == padded || name.empty() || job_.model.init_from) return;  // a checkpoint's rows are as they are
    LoadedJob changed = as_compiled(loaded_, compiled_);
    changed.job.model.with[name] = ParamValue(static_cast<double>(padded));
    const std::optional<cost::Scored> best = best_of(changed);
    if (best)
      add(fmt::format("model.with.{}={}", name, padded), best->step_us, job_.train.batch.global,
          fmt::format("{} rows are no multiple of {}, and rows that no token uses change nothing else: ", rows,
                      kRowMultiple));
  }

  // By the other one of a GPU and its host, where masters and states are the host's.
  void other_update() {
    if (compiled_.strategy.offload.optimizer != OffloadTo::host || job_.precision.compute == DType::f16) return;
    LoadedJob changed = as_compiled(loaded_, compiled_);
    UpdateOn& update = changed.job.strategy.offload.update;
    update = update == UpdateOn::device ? UpdateOn::host : UpdateOn::device;
    const std::optional<cost::Scored> best = best_of(changed);
    if (!best) return;
    const std::string_view by = update == UpdateOn::host ? "the host's processor" : "the GPU";
    add(fmt::format("strategy.offload.update={}", name_of(update)), best->step_us, job_.train.batch.global,
        fmt::format("weights updated by {}: ", by));
  }

  // The parameter of the graph that is the size of the vocabulary.
  std::string parameter_with(std::int64_t rows) const {
    const auto is_it = [&](const std::string& name, double value) {
      return name.find("vocab") != std::string::npos && value == static_cast<double>(rows);
    };
    for (const auto& [name, value] : job_.model.with)
      if (value.number() != nullptr && is_it(name, *value.number())) return name;
    const yaml::Node tree = graph_tree(loaded_);
    const yaml::Node* const params = tree.find("params");
    if (params == nullptr || !params->is_mapping()) return "";
    for (std::size_t i = 0; i < params->keys.size(); ++i)
      if (!job_.model.with.contains(params->keys[i].text) &&
          is_it(params->keys[i].text, params->items[i].as_number().value_or(0)))
        return params->keys[i].text;
    return "";
  }

  const LoadedJob& loaded_;
  const Job& job_;
  const Hardware& hardware_;
  const CompiledJob& compiled_;
  const double step_us_;
  std::optional<double> score_;
  std::vector<Found> found_;
};

}  // namespace

std::vector<Suggestion> advise(const LoadedJob& loaded, const Hardware& hardware, const CompiledJob& compiled,
                               double step_us) {
  return compiled.fits ? Advisor(loaded, hardware, compiled, step_us).run() : std::vector<Suggestion>{};
}

}  // namespace trainer
