// In a pipeline passes of many micro-batches interleave: a gathered copy that is released between them would be
// gathered again for each. The memory of sharded gradients is kept as the papers promise it; `reduce: step` trades it
// for one reduction.
#include "engine/job/resolve.h"

#include <fmt/format.h>

#include "engine/job/data_strategies.h"

namespace trainer {

ResolvedData resolve(const DataStrategyJob& data, bool pipelined) {
  const DataRecord& record = record_of(data);
  ResolvedData out{record.shard_states, record.shard_gradients, record.shard_parameters,
                   pipelined ? Keep::step : record.keep, record.reduce};
  out.secondary = record.takes("secondary") && data.secondary != 1;
  if (out.secondary) out.keep = Keep::use;  // a copy that stays is not gathered a second time
  if (record.takes("keep") && data.keep != Keep::automatic) out.keep = data.keep;
  if (record.takes("reduce") && data.reduce != Reduce::automatic) out.reduce = data.reduce;
  out.int8_gathers = record.takes("gather") && data.gather == SentAs::int8;
  out.int8_reductions = record.takes("reduce_dtype") && data.reduce_dtype == SentAs::int8;
  return out;
}

// The ranks of a replica are neighbours, as those of a node are.
SecondaryReplica secondary_replica(const DataStrategyJob& data, const Mesh& mesh, std::int64_t left, std::int64_t nodes,
                                   std::int64_t of_node) {
  const std::int64_t tensor = mesh.size(Axis::tensor), inner = mesh.group_size(kSliceAxes - Axes::of(Axis::shard)),
                     all = left * inner;
  const bool node = data.secondary == DataStrategyJob::kOfNode;
  if (node && nodes == 1) return {0, "there is one node, and gathers stay inside it", "none, or a number of ranks"};
  if (node && (of_node % tensor != 0 || of_node == tensor))
    return {0, fmt::format("tensor {} leaves a node of {} ranks none that share a copy", tensor, of_node), "none"};
  const std::int64_t sharing = node ? of_node / tensor : data.secondary;
  if (sharing >= all || all % sharing != 0)
    return {0, fmt::format("{} ranks are to share a copy, and {} gather together", sharing, all),
            "none, or a divisor of that below it"};
  if (sharing % inner != 0)
    return {0,
            fmt::format("{} ranks are to share a copy, and expert and context parallelism take {} side by side",
                        sharing, inner),
            "none, or a multiple of that"};
  return {static_cast<int>(sharing / inner)};
}

}  // namespace trainer
