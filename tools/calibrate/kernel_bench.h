// KernelBench: times of kernels on this machine as a step has them: on several ranks at once, each with its threads,
// over operands that rotate through memory, since in a step a kernel's operands have been pushed out of the nearest
// caches by what ran since.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/core/signature.h"
#include "engine/cost/machine_model.h"

namespace trainer::tools {

class KernelBench {
 public:
  /// Starts `ranks` threads, each of which runs kernels with a team of `threads`.
  KernelBench(int ranks, int threads);
  ~KernelBench();
  KernelBench(const KernelBench&) = delete;
  KernelBench& operator=(const KernelBench&) = delete;

  /// Microseconds of one run on every rank at once: the median over some `budget_ms` of runs, and half their
  /// interquartile range. Where ranks have more threads than there are cores, the time of all over the number of runs.
  /// `from_memory`: no cache holds the operands, but for the one that the kernel before would have written. `rest_ms`,
  /// if given: the operands stay in one place, and before each run all threads wait so long and touch no memory.
  /// Throws what the kernel throws, as DataError where it does not take the contents (operands.h).
  cost::Figure measure(const Signature& signature, double budget_ms, bool from_memory = false,
                       std::optional<double> rest_ms = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Asks for real-time priority, so that other programs disturb less; whether it was given.
bool take_priority();

}  // namespace trainer::tools
