// Finalists: candidates of a search that are planned and played in full.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/compile/compiled_job.h"
#include "engine/compile/explain.h"
#include "engine/cost/search.h"
#include "engine/job/yaml.h"

namespace trainer {

/// The strategy of a job with everything that the candidate decides. `pieces`: the nodes that begin them.
StrategyJob strategy_of(const StrategyJob& job, const cost::Candidate& candidate,
                        const std::vector<std::string>& pieces);

class Finalists {
 public:
  /// All outlive it.
  Finalists(const LoadedJob& loaded, const Hardware& hardware, const std::vector<std::string>& pieces)
      : loaded_(loaded), hardware_(hardware), pieces_(pieces) {}

  /// Plans a candidate and plays the plan. Null where the planner refuses it (a step of too many instructions).
  const cost::Scored* plan(const cost::Scored& scored);

  bool any_fits() const;
  const std::vector<Finalist>& all() const { return finalists_; }
  const std::vector<JobError>& refused() const { return refused_; }
  /// Of the steps of all plans that were made.
  std::int64_t instructions() const { return instructions_; }
  CompiledJob take(std::size_t finalist) { return std::move(compiled_[finalist]); }

 private:
  const LoadedJob& loaded_;
  const Hardware& hardware_;
  const std::vector<std::string>& pieces_;
  std::vector<Finalist> finalists_;
  std::vector<CompiledJob> compiled_;
  std::vector<JobError> refused_;
  std::int64_t instructions_ = 0;
};

}  // namespace trainer
