// Finalists: candidates of a search that are planned, or drafted, and played; or known not to fit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/compile/compiled_job.h"
#include "engine/compile/explain.h"
#include "engine/compile/fixed.h"
#include "engine/cost/search.h"
#include "engine/job/yaml.h"

namespace trainer {

/// The strategy of a job with everything that the candidate decides. `pieces`: the nodes that begin them.
StrategyJob strategy_of(const StrategyJob& job, const cost::Candidate& candidate,
                        const std::vector<std::string>& pieces);

class Finalists {
 public:
  /// All outlive it.
  Finalists(const LoadedJob& loaded, const Hardware& hardware, const std::vector<std::string>& pieces,
            std::int64_t limit_bytes)
      : loaded_(loaded), hardware_(hardware), pieces_(pieces), limit_bytes_(limit_bytes) {}

  struct Planned {
    std::optional<cost::Scored> scored;  ///< nothing where the planner refuses it (a step of too many instructions)
    bool played = false;                 ///< it has a plan, or a draft of one, which was played
  };
  /// Drafts plans of candidates, at the same time, and plays them. A pipeline whose fullest stage cannot fit is not
  /// planned further: its bytes are the least that it needs. The same goes for a draft of a step that may fit as a
  /// list: it counts as one that fits, if that least does, until it is complete.
  std::vector<Planned> plan(const std::vector<cost::Scored>& scored);
  bool is_complete(std::size_t finalist) const { return compiled_[finalist].has_value(); }
  /// Plans one to its end. Nothing where the planner refuses it: it is no longer a finalist.
  std::optional<cost::Scored> complete(std::size_t finalist);

  bool any_fits() const;
  const std::vector<Finalist>& all() const { return finalists_; }
  const std::vector<JobError>& refused() const { return refused_; }
  /// How many of them have a plan, and the instructions of all their steps.
  std::size_t num_planned() const { return num_planned_; }
  std::int64_t instructions() const { return instructions_; }
  /// Instructions of one's step. REQUIRES: it is complete.
  std::int64_t instructions(std::size_t finalist) const;
  /// REQUIRES: it is complete.
  CompiledJob take(std::size_t finalist) { return std::move(*compiled_[finalist]); }

 private:
  struct Attempt {
    Finalist finalist;
    std::optional<CompiledJob> compiled;  // nothing: not planned to its end
    std::int64_t instructions = 0;        // of a step; 0: there is no plan
    std::optional<JobError> refused;
  };
  Attempt attempt(const cost::Scored& scored) const;
  bool cannot_fit(const LoadedJob& job, const cost::Scored& scored, std::int64_t& least) const;
  Attempt played(const LoadedJob& job, const cost::Scored& scored, Finish finish) const;
  void count(const Attempt& attempt);

  const LoadedJob& loaded_;
  const Hardware& hardware_;
  const std::vector<std::string>& pieces_;
  std::vector<Finalist> finalists_;
  std::vector<std::optional<CompiledJob>> compiled_;  // nothing: not planned to its end
  std::vector<JobError> refused_;
  const std::int64_t limit_bytes_;
  std::size_t num_planned_ = 0;
  std::int64_t instructions_ = 0;
};

}  // namespace trainer
