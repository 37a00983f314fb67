// Whether ranks that hold the same elements of a parameter hold the same bits: of its master weights and the
// optimizer's states, at the end of a run. Replicas are updated by each rank for itself, from sums that all have alike;
// where two differ, a sum was not one, and each goes on from weights of its own without anything that shows it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/run/executor.h"

namespace trainer {

class Replicas {
 public:
  /// `plan` outlives it. Ranks that train apart (Plan::drifts) have nothing alike until they average: of these, and of
  /// what each keeps for itself (Slot::own), nothing is compared.
  explicit Replicas(const Plan& plan) : plan_(plan) {}

  /// By each rank, on any thread, at the end of its run.
  void add(int rank, const Executor& executor);

  /// Of all that were added: "model.norm.weight", "model.norm.weight.exp_avg".
  std::vector<std::string> different() const;

 private:
  using Held = std::pair<std::string, std::vector<std::array<std::int64_t, 4>>>;  // a name, and which elements
  struct Seen {
    std::uint64_t hash = 0;
    bool differs = false;
  };

  const Plan& plan_;
  mutable std::mutex mutex_;
  std::map<Held, Seen> seen_;
};

}  // namespace trainer
