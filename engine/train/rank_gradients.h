// What ranks have of gradients before any two of them sum theirs, for the simulation of ranks that send codes
// (serial_steps.h). The ranks are those of the job, on the same mesh, but they train under DDP, and the sums of
// gradients over tokens and stages are left out of their plan.
//
// A job shows its gradients by training with Adam with β₁ = 0, whose first moment is the gradient, exactly. The
// learning rate is so small that the weights stay.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/run/executor.h"

namespace trainer {

/// The job with the gradients of a step as first moments at its end.
LoadedJob with_gradients_as_moments(LoadedJob loaded);

/// The job of the ranks of `loaded` that train on one part of `parts` of every batch, under DDP. `compiled` is their
/// plan.
LoadedJob under_ddp(LoadedJob loaded, const CompiledJob& compiled, int parts);

/// The same plan without sums of gradients over tokens and stages. REQUIRES: it is one under DDP.
CompiledJob without_sums(CompiledJob compiled);

class RankGradients {
 public:
  explicit RankGradients(int world_size) : of_ranks_(static_cast<std::size_t>(world_size)) {}
  /// REQUIRES: nothing is added to `other` any more.
  RankGradients(RankGradients&& other) noexcept : of_ranks_(std::move(other.of_ranks_)) {}

  /// A rank adds what it has after a step. Ranks may do so at once. REQUIRES: its job is one with_gradients_as_moments.
  void add(int rank, const Executor& executor);
  /// Of a parameter, the elements that the rank holds.
  const std::vector<float>& of(int rank, const std::string& parameter) const;

 private:
  std::mutex mutex_;
  std::vector<std::map<std::string, std::vector<float>>> of_ranks_;
};

}  // namespace trainer
