// Fully sharded data parallelism. Source: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data
// Parallel", VLDB 2023, section 3 (units, sharding strategies, prefetch). With N ranks along the shard axis, M
// micro-batches, and P and G the bytes of working copy and gradients, a rank holds and sends per step:
//
//   full_shard      everything 1/N                                           (N − 1)/N · M (2 P + G)
//   shard_grad_op   the same, but parameters whole from forward to backward  (N − 1)/N · M (P + G)
//   hybrid_shard    full_shard inside a shard group                          and 2 (R − 1)/R · G/N across R replicas
//   no_shard        everything whole: ddp
//
// `keep: step` gathers once a step; `reduce: step` reduces once, for whole gradients in memory.
#include "strategies/data/sharded.h"
#include "strategies/strategies.h"

namespace trainer::strategies {

std::unique_ptr<DataStrategy> make_fsdp(const DataStrategyJob& job, const ResolvedData& data) {
  return data.shard_states ? make_sharded(job, data) : make_ddp(job, data);
}

}  // namespace trainer::strategies
