#include "engine/compile/mesh_of.h"

#include <fmt/format.h>

#include "engine/core/check.h"
#include "engine/job/nearest_numbers.h"

namespace trainer {
namespace {

constexpr std::int64_t kMostRanks = 1'000'000;  // as many as a degree may be

class Arrangement {
 public:
  explicit Arrangement(const LoadedJob& loaded)
      : loaded_(loaded),
        strategy_(loaded.job.strategy),
        world_(loaded.job.cluster.nodes * loaded.job.cluster.devices_per_node.value_or(1)),
        left_(world_) {}

  Mesh mesh() {
    if (world_ > kMostRanks)
      throw JobError({loaded_.at("cluster", fmt::format("{} ranks, and a mesh has at most {}", world_, kMostRanks))});
    take(Axis::pipeline, strategy_.pipeline.degree.value_or(left_), "strategy.pipeline.degree");
    take(Axis::tensor, strategy_.tensor.degree.value_or(left_), "strategy.tensor.degree");
    take(Axis::context, strategy_.context.degree, "strategy.context.degree");
    if (shards()) take(Axis::replicate, replicas(), "strategy.data.replicate");
    take(shards() ? Axis::shard : Axis::replicate, left_, "");
    return mesh_;
  }

 private:
  bool shards() const {
    switch (strategy_.data.kind) {
      case DataKind::ddp:
        return sums_slices();
      case DataKind::local_sgd:
        return false;
      case DataKind::zero1:
      case DataKind::zero2:
      case DataKind::zero3:
        return true;
      case DataKind::fsdp:
        return strategy_.data.sharding != Sharding::no_shard || sums_slices();
    }
    UNREACHABLE("a data strategy without axes");
  }

  // int8: each rank sums a slice of the gradient, whatever is sharded.
  bool sums_slices() const { return strategy_.data.compression.kind == Compression::Kind::int8; }

  std::int64_t replicas() const {
    const DataStrategyJob& data = strategy_.data;
    if (data.kind != DataKind::fsdp) return 1;
    if (data.replicate || data.sharding != Sharding::hybrid_shard) return data.replicate.value_or(1);
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
  const std::int64_t world_;
  std::int64_t left_;  // ranks that no axis has taken yet
  Mesh mesh_;
};

}  // namespace

Mesh mesh_of(const LoadedJob& loaded) { return Arrangement(loaded).mesh(); }

}  // namespace trainer
