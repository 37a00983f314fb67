// Small functions of a compiled job: its peak, its ranks and threads, and the job with nothing left to `auto`.
#include "engine/compile/compiled_job.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/environment.h"
#include "engine/core/parallel.h"
#include "engine/plan/loop.h"

namespace trainer {

std::int64_t CompiledJob::peak_bytes() const {
  std::int64_t most = 0;
  for (const MemoryReport& report : memory) most = std::max(most, report.peak_bytes);
  return most;
}

int world_size_of(const Job& job) {
  return static_cast<int>(job.cluster.nodes * job.cluster.devices_per_node.value_or(1));
}

int threads_per_rank(int ranks) {
  int cores = static_cast<int>(num_processors());
  if (const std::optional<std::string> given = environment::value_of(environment::kThreads))
    cores = static_cast<int>(environment::whole_number(environment::kThreads.name, *given, 1, 4096));
  return std::max(1, cores / ranks);
}

std::string_view name_of(Basis basis) {
  constexpr std::string_view kNames[] = {"scored", "drafted", "planned"};
  return kNames[static_cast<std::size_t>(basis)];
}

std::string Suggestion::str() const { return fmt::format("{}: {}", fmt::join(overrides, " "), text); }

CompiledJob written_out(CompiledJob job) {
  if (!loops(job.plan)) return job;
  job.hash = hash_of(job);
  job.plan = unrolled(job.plan);
  job.memory = report_memory(job.plan);
  return job;
}

std::string hash_of(const CompiledJob& job) { return job.hash.empty() ? hash_of(job.plan) : job.hash; }

}  // namespace trainer
