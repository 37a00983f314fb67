// How data strategies get the axes replicate and shard.
#include "engine/cost/kinds.h"

#include <algorithm>
#include <optional>

#include "engine/job/data_strategies.h"
#include "engine/job/resolve.h"

namespace trainer::cost {
namespace {

// Of so many replicas and slices, whichever there is more than one of, as many are along the expert axis as it has
// ranks.
Candidate with(Candidate c, const DataRecord& record, int replicate, int shard) {
  c.kind = record.kind;
  c.sharding = record.sharding.value_or(c.sharding);
  (record.shard_states ? shard : replicate) /= c.size(Axis::expert);
  c.mesh.set(Axis::replicate, replicate);
  c.mesh.set(Axis::shard, shard);
  return c;
}

class Kinds {
 public:
  Kinds(const SearchSpace& space, const Candidate& c, int data) : space_(space), job_(*space.job), c_(c), data_(data) {}

  std::vector<Candidate> all() const {
    std::vector<Candidate> result;
    for (const DataRecord& record : data_records()) {
      if (!record.searched || (record.shard_states && data_ == 1)) continue;
      if (record.replica_is_node) {
        across_nodes(record, result);
        continue;
      }
      result.push_back(record.shard_states ? with(c_, record, 1, data_) : with(c_, record, data_, 1));
      if (record.searched_once) result.push_back(result.back()), result.back().once = true;
      if (std::optional<Candidate> copied = copied_in_nodes(record)) result.push_back(*std::move(copied));
    }
    return result;
  }

  std::vector<Candidate> as_asked(std::string& refused) const {
    const DataStrategyJob& job = job_.strategy.data;
    const DataRecord& record = record_of(job);
    Candidate c = c_;
    c.sharding = job.sharding;
    if (!record.shard_states) return {with(c, record, data_, 1)};
    if (resolve(job, false).secondary) {
      const std::optional<Candidate> found = with_secondary(with(c, record, 1, data_), job, refused);
      return found ? std::vector{*found} : std::vector<Candidate>{};
    }
    std::int64_t replicas = job.replicate.value_or(record.replica_is_node ? job_.cluster.nodes : 1);
    if (replicas < 1 || data_ % (replicas * c.size(Axis::expert)) != 0) replicas = 1;
    return {with(c, record, static_cast<int>(replicas), data_ / static_cast<int>(replicas))};
  }

 private:
  // Shards inside a node, replicas across: then over twice as many nodes, and so on.
  void across_nodes(const DataRecord& record, std::vector<Candidate>& result) const {
    const int of_node = space_.ranks_per_node / c_.size(Axis::tensor) / c_.size(Axis::context);
    for (int shard = std::max(1, of_node); shard < data_ && shard > 1; shard *= 2)
      if (data_ % shard == 0 && data_ > of_node && shard % c_.size(Axis::expert) == 0)
        result.push_back(with(c_, record, data_ / shard, shard));
  }

  // With a secondary copy in each node. In a pipeline what was gathered stays.
  std::optional<Candidate> copied_in_nodes(const DataRecord& record) const {
    if (!record.takes("secondary") || c_.size(Axis::pipeline) > 1) return std::nullopt;
    DataStrategyJob of_node;
    of_node.secondary = DataStrategyJob::kOfNode;
    std::string refused;
    return with_secondary(with(c_, record, 1, data_), of_node, refused);
  }

  // The same, its gathers after the first of a step among the ranks that `data` has share a copy.
  std::optional<Candidate> with_secondary(Candidate c, const DataStrategyJob& data, std::string& refused) const {
    const int all = c.size(Axis::shard);
    const SecondaryReplica one = secondary_replica(data, c.mesh, all, job_.cluster.nodes, space_.ranks_per_node);
    refused = one.refused;
    if (one.shard == 0) return std::nullopt;
    c.secondary = true;
    c.mesh.set(Axis::replicate, all / one.shard);
    c.mesh.set(Axis::shard, one.shard);
    return c;
  }

  const SearchSpace& space_;
  const Job& job_;
  const Candidate& c_;
  const int data_;
};

}  // namespace

std::vector<Candidate> kinds_over(const SearchSpace& space, const Candidate& c, int data, std::string& refused) {
  const Kinds kinds(space, c, data);
  return space.job->strategy.free.data ? kinds.all() : kinds.as_asked(refused);
}

}  // namespace trainer::cost
