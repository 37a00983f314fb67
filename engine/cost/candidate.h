// Candidate: one way to spread a job over its ranks, in numbers. What a search chooses among.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "engine/core/mesh.h"
#include "engine/job/job.h"

namespace trainer::cost {

struct Candidate {
  Mesh mesh;
  bool sequence_parallel = false;
  bool gathers_again = false;                 ///< what sequence parallelism gathers is not kept for the backward pass
  bool pairs = false;                         ///< TensorStrategyJob::overlap
  ContextKind context = ContextKind::gather;  ///< gather where the context axis has one rank
  DataKind kind = DataKind::ddp;
  Sharding sharding = Sharding::full_shard;
  bool secondary = false;  ///< replicas have secondary copies of the weights alone (DataStrategyJob::secondary)
  bool once = false;  ///< of what is sharded: gathered and reduced once a step, whatever the number of micro-batches
  std::int64_t prefetch = 0;  ///< units gathered ahead; 0: as the job has it
  double bucket_mb = 0;       ///< 0: as the job has it
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int virtual_stages = 1;
  /// The piece that each chunk begins with, where a pipeline is cut for memory; null: as the job has it.
  std::shared_ptr<const std::vector<int>> begins;
  ActivationCheckpointingJob recompute{};
  std::int64_t micro = 1;
  int micro_batches = 1;

  int size(Axis axis) const { return mesh.size(axis); }
  int data_ranks() const { return mesh.group_size(kBatchAxes); }
  /// Of a chunk's pass in a step.
  int actions() const { return micro_batches / (pairs ? 2 : 1); }
  int num_chunks() const { return size(Axis::pipeline) * virtual_stages; }
  /// Of data, expert, tensor, context and pipeline those that the ranks are spread along.
  int num_axes() const {
    return (data_ranks() > 1) + (size(Axis::expert) > 1) + (size(Axis::tensor) > 1) + (size(Axis::context) > 1) +
           (size(Axis::pipeline) > 1);
  }
  /// Among which states are sliced, and the ranks of them.
  Axes slice_axes() const { return trainer::slice_axes(secondary); }
  int slices() const { return mesh.group_size(slice_axes()); }
  /// Of `all` elements, `own` of them of a rank's experts, those in a slice.
  std::int64_t sliced(std::int64_t all, std::int64_t own) const {
    return (all - own) / slices() + own / (slices() / size(Axis::expert));
  }
  /// Ranks over which gradients are summed.
  int token_ranks() const { return mesh.group_size(kTokenAxes); }
};

/// "fsdp full_shard × 8, tensor 2 with sequence parallel, pipeline 4 (interleaved, 2 virtual stages), micro-batch 1,
/// full recomputation".
std::string text_of(const Candidate& candidate);

/// What two candidates have in common that differ in schedule, micro-batch or recomputation alone: the mesh and how
/// parameters live.
using MeshAndKind = std::tuple<Mesh, DataKind, Sharding, bool>;
inline MeshAndKind mesh_and_kind(const Candidate& c) { return {c.mesh, c.kind, c.sharding, c.once}; }

/// Whether two candidates are one in all that a search decides.
inline bool same(const Candidate& a, const Candidate& b) {
  const auto rest = [](const Candidate& c) {
    return std::tuple(c.sequence_parallel, c.gathers_again, c.pairs, c.context, c.schedule, c.virtual_stages, c.micro,
                      c.recompute.mode, c.recompute.every);
  };
  const bool cut_alike = a.begins == b.begins || (a.begins && b.begins && *a.begins == *b.begins);
  return mesh_and_kind(a) == mesh_and_kind(b) && rest(a) == rest(b) && cut_alike;
}

/// The data strategy that a candidate is, in the words of a job; what it leaves open is as `job` has it.
DataStrategyJob data_strategy_of(const DataStrategyJob& job, const Candidate& candidate);

/// How many things a person has to understand of it: what two equally fast ones are told apart by. Smaller is simpler.
int complexity(const Candidate& candidate);

}  // namespace trainer::cost
