// Sources of the defaults: Rajbhandari et al., "ZeRO", SC 2020, section 5; Zhao et al., "PyTorch FSDP", VLDB 2023,
// section 3.2.
//
//   kind                        states  gradients  parameters  keep            keep, pipelined   reduce
//   ddp, fsdp no_shard, local   whole   whole      whole       –               –                 step
//   zero1                       1/N     whole      whole       –               –                 step
//   zero2                       1/N     1/N        whole       –               –                 micro_batch
//   fsdp shard_grad_op          1/N     1/N        1/N         pass            step              micro_batch
//   zero3, fsdp full, hybrid    1/N     1/N        1/N         use             step              micro_batch
//
// In a pipeline passes of many micro-batches interleave: a copy released between them would be gathered again for each.
// The memory of sharded gradients is kept as the papers promise it; `reduce: step` trades it for one reduction.
#include "engine/job/resolve.h"

#include "engine/core/check.h"

namespace trainer {
namespace {

ResolvedData sharded(const DataStrategyJob& data, Keep keep, bool pipelined) {
  ResolvedData out{.shard_states = true,
                   .shard_gradients = true,
                   .shard_parameters = true,
                   .keep = keep,
                   .reduce = Reduce::micro_batch};
  if (pipelined) out.keep = Keep::step;
  if (data.keep != Keep::automatic) out.keep = data.keep;
  if (data.reduce != Reduce::automatic) out.reduce = data.reduce;
  return out;
}

ResolvedData replicated(const DataStrategyJob& data) {
  ResolvedData out;
  if (data.reduce != Reduce::automatic) out.reduce = data.reduce;
  return out;
}

ResolvedData fsdp(const DataStrategyJob& data, bool pipelined) {
  switch (data.sharding) {
    case Sharding::full_shard:
    case Sharding::hybrid_shard:
      return sharded(data, Keep::use, pipelined);
    case Sharding::shard_grad_op:
      return sharded(data, Keep::pass, pipelined);
    case Sharding::no_shard:
      return replicated(data);
  }
  UNREACHABLE("an fsdp sharding without a meaning");
}

}  // namespace

ResolvedData resolve(const DataStrategyJob& data, bool pipelined) {
  switch (data.kind) {
    case DataKind::ddp:
      return replicated(data);
    case DataKind::zero1:
      return {.shard_states = true,
              .shard_gradients = false,
              .shard_parameters = false,
              .keep = Keep::step,
              .reduce = Reduce::step};
    case DataKind::zero2:
      return {.shard_states = true,
              .shard_gradients = true,
              .shard_parameters = false,
              .keep = Keep::step,
              .reduce = Reduce::micro_batch};
    case DataKind::zero3:
      return sharded(data, Keep::use, pipelined);
    case DataKind::fsdp:
      return fsdp(data, pipelined);
    case DataKind::local_sgd:
      return {};
  }
  UNREACHABLE("a data strategy without a meaning");
}

}  // namespace trainer
