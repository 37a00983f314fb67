// A candidate as text, as the strategy of a job, and its complexity, by which ties are decided.
#include "engine/cost/candidate.h"

#include <fmt/format.h>

#include "engine/job/data_strategies.h"

namespace trainer::cost {
namespace {

std::string data_text(const Candidate& c) {
  if (c.data_ranks() == 1) return "";
  std::string text = record_of(c.kind, c.sharding).text();
  text += fmt::format(" over {}", c.data_ranks());
  if (c.prefetch > 0) text += fmt::format(", {} units gathered ahead", c.prefetch);
  if (c.bucket_mb > 0) text += fmt::format(", buckets of {:g} MiB", c.bucket_mb);
  if (c.once) text += ", gathered and reduced once a step";
  if (c.secondary)
    text += fmt::format(", a secondary copy over {}", c.mesh.group_size(kSliceAxes));
  else if (c.size(Axis::replicate) > 1 && c.size(Axis::shard) > 1)
    text += fmt::format(" ({} shards × {} replicas)", c.size(Axis::shard), c.size(Axis::replicate));
  return text;
}

// Records are in the order from the simple to the intricate, and so are schedules.
int of_data(const Candidate& c) {
  return c.data_ranks() == 1 ? 0 : 1 + static_cast<int>(&record_of(c.kind, c.sharding) - data_records().data());
}

int of_schedule(const Candidate& c) { return c.size(Axis::pipeline) == 1 ? 0 : 1 + static_cast<int>(c.schedule); }

int of_recomputation(const Candidate& c) {
  switch (c.recompute.mode) {
    case CheckpointingMode::none:
      return 0;
    case CheckpointingMode::selective:
      return 1;
    case CheckpointingMode::full:
      return 2;
    default:
      return 3;
  }
}

}  // namespace

std::string text_of(const Candidate& c) {
  std::string text = data_text(c);
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (c.size(Axis::tensor) > 1)
    add(fmt::format("tensor {}{}{}{}", c.size(Axis::tensor), c.sequence_parallel ? " with sequence parallel" : "",
                    c.gathers_again ? " (keep: shard)" : "", c.pairs ? " (overlap)" : ""));
  if (c.size(Axis::expert) > 1) add(fmt::format("expert {}", c.size(Axis::expert)));
  if (c.size(Axis::context) > 1) add(fmt::format("context {} ({})", c.size(Axis::context), name_of(c.context)));
  if (c.size(Axis::pipeline) > 1)
    add(fmt::format("pipeline {} ({}{}{})", c.size(Axis::pipeline), name_of(c.schedule),
                    c.virtual_stages > 1 ? fmt::format(", {} virtual stages", c.virtual_stages) : "",
                    c.begins ? ", cut for memory" : ""));
  if (c.mesh.world_size() == 1) add("one rank");
  add(fmt::format("micro-batch {}", c.micro));
  if (c.recompute.mode != CheckpointingMode::none)
    add(c.recompute.mode == CheckpointingMode::every_n
            ? fmt::format("recomputation of every {}. block", c.recompute.every)
            : std::string(name_of(c.recompute.mode)) + " recomputation");
  return text;
}

DataStrategyJob data_strategy_of(const DataStrategyJob& job, const Candidate& c) {
  DataStrategyJob data = job;
  data.kind = c.kind;
  data.sharding = c.sharding;
  data.replicate.reset();
  if (record_of(data).takes("replicate")) data.replicate = c.secondary ? 1 : c.size(Axis::replicate);
  data.secondary = !c.secondary ? 1 : job.secondary == 1 ? DataStrategyJob::kOfNode : job.secondary;
  if (c.once) data.keep = Keep::step, data.reduce = Reduce::step;
  if (c.prefetch > 0) data.prefetch = c.prefetch;
  if (c.bucket_mb > 0) data.bucket_mb = c.bucket_mb;
  return data;
}

int complexity(const Candidate& c) {
  return c.num_axes() * 1000 + of_schedule(c) * 60 + of_data(c) * 10 + of_recomputation(c) * 12 +
         (c.sequence_parallel ? 5 : 0) + (c.gathers_again ? 1 : 0) + (c.pairs ? 6 : 0) +
         (c.context == ContextKind::ring ? 2 : 0) + (c.size(Axis::replicate) > 1 && c.size(Axis::shard) > 1 ? 3 : 0) +
         (c.once ? 4 : 0) + (c.begins ? 2 : 0) + (c.prefetch > 0) + (c.bucket_mb > 0);
}

}  // namespace trainer::cost
