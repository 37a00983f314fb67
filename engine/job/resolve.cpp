// In a pipeline passes of many micro-batches interleave: a gathered copy that is released between them would be
// gathered again for each. The memory of sharded gradients is kept as the papers promise it; `reduce: step` trades it
// for one reduction.
#include "engine/job/resolve.h"

#include "engine/job/data_strategies.h"

namespace trainer {

ResolvedData resolve(const DataStrategyJob& data, bool pipelined) {
  const DataRecord& record = record_of(data);
  ResolvedData out{record.shard_states, record.shard_gradients, record.shard_parameters,
                   pipelined ? Keep::step : record.keep, record.reduce};
  if (record.takes("keep") && data.keep != Keep::automatic) out.keep = data.keep;
  if (record.takes("reduce") && data.reduce != Reduce::automatic) out.reduce = data.reduce;
  out.int8_gathers = record.takes("gather") && data.gather == SentAs::int8;
  out.int8_reductions = record.takes("reduce_dtype") && data.reduce_dtype == SentAs::int8;
  return out;
}

}  // namespace trainer
