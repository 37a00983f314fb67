// What compilation takes and gives: the hardware of a job's ranks, and the job as it was compiled, with its plan and
// all that is said of it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/signature.h"
#include "engine/job/job.h"
#include "engine/plan/memory.h"
#include "engine/plan/plan.h"
#include "engine/plan/strategy.h"

namespace trainer {
namespace cost {
struct MachineModel;
struct Prediction;
}  // namespace cost

/// What the ranks of a job run on.
struct Hardware {
  const Target* target = nullptr;               ///< the kernels' layouts and sizes
  std::int64_t memory_bytes = 0;                ///< of one node, shared by its ranks
  int threads = 1;                              ///< of one rank
  const cost::MachineModel* machine = nullptr;  ///< for times; null: none are predicted
  int ranks_per_node = 1;
  std::int64_t device_bytes = 0;  ///< of one rank, where each has a memory of its own (GPUs); 0: the node's is shared
  bool loops = true;              ///< false: plans have every micro-batch written out, to compare
  std::int64_t offload_chunk = std::int64_t{4} << 20;  ///< elements of a chunk (staged_units.h)
};

/// The processor of this machine, shared by `ranks` ranks. TRAINER_THREADS replaces the number of cores; throws
/// UsageError where that is no number of threads.
int threads_per_rank(int ranks);

/// The batch as a rank sees it.
struct BatchShape {
  std::int64_t global = 0;  ///< samples per step, all ranks
  std::int64_t micro = 0;   ///< samples per micro-batch and rank
  int micro_batches = 0;    ///< per step and rank
  int data_ranks = 1;
};

/// A run of the model's nodes that lives on one stage.
struct PipelineChunk {
  int stage = 0;
  std::vector<std::string> parts;  ///< outermost blocks, and nodes that are in none, in order
};

/// What a candidate's time and memory are from: a score; a draft of its plan, whose memory is the least that it needs;
/// its plan.
enum class Basis : std::uint8_t { score, draft, plan };
std::string_view name_of(Basis basis);

/// A way to train that was looked at and not taken, or the one that was.
struct Alternative {
  StrategyJob strategy;
  Mesh mesh;
  std::int64_t micro = 1;
  ActivationCheckpointingJob recompute;
  std::string text;         ///< "fsdp full_shard over 8, micro-batch 4"
  double predicted_us = 0;  ///< of a step
  std::int64_t peak_bytes = 0;
  Basis basis = Basis::score;
  std::string rejected;  ///< why it lost; empty: it was taken
};

/// A change of the job, and what would come of it.
struct Suggestion {
  std::vector<std::string> overrides;  ///< "train.batch.micro=auto", as the command line takes them
  std::string text;                    ///< what would come of it, for people: "fsdp full_shard over 8, micro-batch 2"
  double predicted_us = 0;             ///< of a step; 0: not predicted

  /// "train.batch.micro=auto: fsdp full_shard over 8, micro-batch 2".
  std::string str() const;
};

struct CompiledJob {
  Plan plan;
  std::string hash;  ///< of the plan as it was compiled, where its loops are written out; else empty: hash_of has it
  BatchShape batch;
  StrategyJob strategy;               ///< the job's with each `auto` resolved: a job that says this has the same plan
  Schedule schedule;                  ///< of the step program
  std::vector<PipelineChunk> chunks;  ///< in forward order
  ActivationCheckpointingJob recompute;                ///< never automatic
  std::string strategy_why;                            ///< why that strategy, a paragraph for people
  std::vector<Alternative> alternatives;               ///< where something was chosen: best first
  std::vector<Suggestion> would_fit;                   ///< where it does not fit: the nearest changes that would
  std::shared_ptr<const cost::Prediction> prediction;  ///< of a step, where the choice has made it; else null
  std::vector<OptimizerJob> optimizers;                ///< Unit::optimizer is an index in it; of training
  std::int64_t num_parameters = 0;
  std::int64_t num_trained = 0;        ///< of those
  std::int64_t num_active = 0;         ///< of all, those that a token meets: of experts only the ones it goes to
  std::vector<std::string> adapter{};  ///< names of the parameters that the job's adapter adds to the model's
  Fp8Scales fp8 = Fp8Scales::none;     ///< of the products of linears in blocks
  double flops_per_step = 0;        ///< of all ranks: every op of the forward and backward pass, recomputation included
  double model_flops_per_step = 0;  ///< of all ranks: three times the forward pass, whatever is done again or left out;
                                    ///< where parameters are frozen, that and what the backward pass then has
  std::vector<MemoryReport> memory;  ///< per role
  std::int64_t limit_bytes = 0;      ///< memory of one rank
  std::int64_t host_bytes = 0;       ///< of the host's memory that a rank may take beside the plan's allocation
  std::optional<std::int64_t> host_limit_bytes{};  ///< of the memory beside a rank's GPU; none: not known
  bool fits = true;
  std::optional<std::int64_t> least_as_list{};  ///< of a draft whose list was not made: the bytes of it at least
  std::optional<std::int64_t> vocabulary;       ///< rows of the embedding that reads `tokens`, where there is one
  std::optional<std::int64_t> classes;          ///< of the logits that the loss reads, where it is a cross-entropy
  std::optional<std::int64_t> ignore_index;     ///< the target that the loss leaves out, where it can leave one out
  bool counts_correct = false;                  ///< an evaluation counts right answers
  std::vector<std::string> figures;             ///< names of Loss::figures

  /// Of the fullest rank.
  std::int64_t peak_bytes() const;
};

/// The same job with every loop of its plan written out: for what shows or measures each instruction.
CompiledJob written_out(CompiledJob job);
/// Of the plan as it was compiled.
std::string hash_of(const CompiledJob& job);

/// What the plan is for: training has step, evaluate (where the job has validation data) and refresh; evaluation has
/// evaluate and refresh; both have sample and prompt too where the job's evaluations generate answers; sampling has
/// sample, prompt and refresh, of one text of the job's length at most, whose keys and values stay between runs
/// (engine/transform/cached.h). Scoring has the same two programs with the job's strategy (one rank, where that is to
/// be chosen) and its micro-batch, once: the field `logits` has the statistics of every row
/// (BuildOptions::Mode::score).
enum class Purpose : std::uint8_t { train, evaluate, sample, score };

/// World size of the job: nodes × devices per node (auto: 1).
int world_size_of(const Job& job);

}  // namespace trainer
