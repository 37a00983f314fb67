// Candidate: one way to spread a job over its ranks, in numbers. What a search chooses among.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "engine/job/job.h"
#include "engine/plan/mesh.h"

namespace trainer::cost {

struct Candidate {
  int pipeline = 1, tensor = 1, replicate = 1, shard = 1;
  bool sequence_parallel = false;
  DataKind kind = DataKind::ddp;
  Sharding sharding = Sharding::full_shard;
  bool once = false;  ///< of what is sharded: gathered and reduced once a step, whatever the number of micro-batches
  std::int64_t prefetch = 0;  ///< units gathered ahead; 0: as the job has it
  double bucket_mb = 0;       ///< 0: as the job has it
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int virtual_stages = 1;
  ActivationCheckpointingJob recompute{};
  std::int64_t micro = 1;
  int micro_batches = 1;

  Mesh mesh() const { return Mesh{{pipeline, replicate, shard, tensor}}; }
  int data_ranks() const { return replicate * shard; }
  int num_chunks() const { return pipeline * virtual_stages; }
  /// Of data, tensor and pipeline those that the ranks are spread along.
  int num_axes() const { return (data_ranks() > 1) + (tensor > 1) + (pipeline > 1); }
  int ranks() const { return pipeline * tensor * data_ranks(); }
};

/// "fsdp full_shard × 8, tensor 2 with sequence parallel, pipeline 4 (interleaved, 2 virtual stages), micro-batch 1, full recomputation".
std::string text_of(const Candidate& candidate);

/// What two candidates have in common that differ in schedule, micro-batch or recomputation alone: the mesh and how parameters live.
using MeshAndKind = std::tuple<int, int, int, int, DataKind, Sharding, bool>;
inline MeshAndKind mesh_and_kind(const Candidate& c) { return {c.pipeline, c.tensor, c.replicate, c.shard, c.kind, c.sharding, c.once}; }

/// The data strategy that a candidate is, in the words of a job; what it leaves open is as `job` has it.
DataStrategyJob data_strategy_of(const DataStrategyJob& job, const Candidate& candidate);

/// How many things a person has to understand of it: what two equally fast ones are told apart by. Smaller is simpler.
int complexity(const Candidate& candidate);

}  // namespace trainer::cost
