// How axes get their sizes: pipeline, tensor, context and expert take theirs from the ranks, and the data axes take the
// rest.
#include "engine/compile/mesh_of.h"

#include <fmt/format.h>

#include "engine/job/data_strategies.h"
#include "engine/job/nearest_numbers.h"
#include "engine/job/resolve.h"

namespace trainer {
namespace {

class Arrangement {
 public:
  explicit Arrangement(const LoadedJob& loaded)
      : loaded_(loaded),
        strategy_(loaded.job.strategy),
        record_(record_of(strategy_.data)),
        world_(loaded.job.cluster.nodes * loaded.job.cluster.devices_per_node.value_or(1)),
        left_(world_) {}

  Mesh mesh() {
    if (world_ > kMostRanks)
      throw JobError({loaded_.at("cluster", fmt::format("{} ranks, and a mesh has at most {}", world_, kMostRanks))});
    take(Axis::pipeline, strategy_.pipeline.degree.value_or(left_), "strategy.pipeline.degree");
    take(Axis::tensor, strategy_.tensor.degree.value_or(left_), "strategy.tensor.degree");
    take(Axis::context, strategy_.context.degree, "strategy.context.degree");
    take(Axis::expert, strategy_.expert.degree, "strategy.expert.degree");
    if (shards()) take(Axis::replicate, replicas(), "strategy.data.replicate");
    take(shards() ? Axis::shard : Axis::replicate, left_, "");
    return mesh_;
  }

 private:
  bool shards() const {
    const CompressionRecord* compression = compression_record(strategy_.data.compression_of_sums().kind);
    return record_.shard_states || (compression != nullptr && compression->sums_slices);
  }

  std::int64_t replicas() const {
    const DataStrategyJob& data = strategy_.data;
    if (resolve(data, false).secondary) {
      const auto& [nodes, of_node] = std::pair(loaded_.job.cluster.nodes, loaded_.job.cluster.devices_per_node);
      const SecondaryReplica one = secondary_replica(data, mesh_, left_, nodes, of_node.value_or(1));
      if (one.shard == 0) throw JobError({loaded_.at("strategy.data.secondary", one.refused, one.allowed)});
      return left_ / one.shard;
    }
    if (!record_.takes("replicate")) return 1;
    if (data.replicate || !record_.replica_is_node) return data.replicate.value_or(1);
    const std::int64_t nodes = loaded_.job.cluster.nodes;
    if (nodes == 1)
      throw JobError({loaded_.at("strategy.data.sharding",
                                 "hybrid_shard shards inside a node and replicates across nodes, and there is one node",
                                 "hybrid_shard with strategy.data.replicate, or full_shard")});
    if (left_ % nodes != 0)
      throw JobError(
          {loaded_.at("strategy.data.replicate",
                      fmt::format("auto is the number of nodes, {}, which does not divide {}", nodes, what_is_left()),
                      nearest_divisors(left_, nodes))});
    return nodes;
  }

  void take(Axis axis, std::int64_t degree, std::string_view path) {
    if (left_ % degree != 0)
      throw JobError({loaded_.at(path, "does not divide " + what_is_left(), nearest_divisors(left_, degree))});
    mesh_.set(axis, static_cast<int>(degree));
    left_ /= degree;
  }

  std::string what_is_left() const {
    if (left_ != world_)
      return fmt::format("{} that other axes leave of {}",
                         left_ == 1 ? "the one rank" : fmt::format("the {} ranks", left_), world_);
    if (world_ > 1) return fmt::format("the {} ranks", world_);
    return loaded_.job.cluster.devices_per_node ? "the one rank"
                                                : "the one rank that cluster.devices_per_node: auto is";
  }

  const LoadedJob& loaded_;
  const StrategyJob& strategy_;
  const DataRecord& record_;
  const std::int64_t world_;
  std::int64_t left_;  // ranks that no axis has taken yet
  Mesh mesh_;
};

}  // namespace

Mesh mesh_of(const LoadedJob& loaded) { return Arrangement(loaded).mesh(); }

}  // namespace trainer
