// The explicit form of a strategy reads back to the strategy it was printed from.
#include "engine/report/strategy_json.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "engine/compile/mesh_of.h"
#include "engine/job/data_strategies.h"
#include "engine/job/resolve.h"

namespace trainer {
namespace {

LoadedJob job(const std::string& strategy) {
  return parse_job(
      "model: {graph: m.yaml}\ndata: {format: text, train: a.txt}\ntrain: {steps: 1, batch: {global: 48}}\nprecision: "
      "{compute: bf16}\n"
      "cluster: {devices_per_node: 8}\nstrategy: " +
          strategy + "\n",
      "job.yaml", {}, {.configs_dir = {}, .check_files = false});
}

TEST_CASE("the explicit form of a strategy is a strategy, of the same mesh and the same decisions") {
  const char* strategies[] = {
      "auto",
      "tensor",
      "pipeline",
      "{data: {kind: fsdp, sharding: no_shard, compression: int8}}",
      "{data: {kind: fsdp, sharding: hybrid_shard, replicate: 2, prefetch: 3}}",
      "{data: {kind: fsdp, sharding: shard_grad_op, reduce: step}}",
      "{data: {kind: ddp, compression: {top_k: 0.01}}}",
      "{data: {kind: local_sgd, outer: {lr: 0.5}}}",
      "{data: {kind: local_sgd, outer: {momentum: 0}}}",
      "{data: {kind: local_sgd, delayed: true}}",
      "{data: {kind: local_sgd, parts: 2, outer: {compression: {top_k: 0.25}}}}",
      "{profile: low_bandwidth}",
      "{data: {kind: local_sgd}, profile: low_bandwidth}",
      "{data: {kind: zero3}, pipeline: {degree: 2, schedule: zb_v, split: [a, b, c]}, tensor: {degree: 2, "
      "sequence_parallel: true}}",
      "{pipeline: {degree: 2, schedule: {file: s.csv}}}",
      "{data: {kind: fsdp, secondary: 2, gather: int8}, tensor: {degree: 2, sequence_parallel: true, keep: shard}}",
      "{data: {kind: fsdp}, pipeline: {degree: 4, schedule: looped_bfs, virtual_stages: 3, split: uniform}}",
      "{pipeline: {degree: 1}, tensor: {degree: 1}, wrap: {policy: names, names: [a], excluded: [b]}}",
      "{wrap: {policy: size, min_params: 7}}",
      "{wrap: {policy: transformer, block: Layer}}",
  };
  std::vector<std::string> all(std::begin(strategies), std::end(strategies));
  for (const DataRecord& record : data_records())
    if (!record.sharding)
      all.emplace_back(name_of(record.kind));
    else
      all.push_back("{data: {kind: " + std::string(name_of(record.kind)) + ", sharding: " +
                    std::string(name_of(*record.sharding)) + (record.replica_is_node ? ", replicate: 2}}" : "}}"));
  for (const std::string& strategy : all) {
    CAPTURE(strategy);
    const LoadedJob first = job(strategy);
    const auto json = report::explicit_strategy(first.job.strategy, mesh_of(first));
    const std::string form = json.dump();
    CAPTURE(form);
    const LoadedJob second = job(form);
    const bool pipelined = mesh_of(first).size(Axis::pipeline) > 1;
    CHECK(mesh_of(second) == mesh_of(first));
    CHECK(resolve(second.job.strategy.data, pipelined) == resolve(first.job.strategy.data, pipelined));
    CHECK(report::explicit_strategy(second.job.strategy, mesh_of(second)).dump() == form);
    CHECK(json["data"].dump().find("auto") == std::string::npos);
  }
}

TEST_CASE("the explicit form has what a pipeline makes of auto") {
  const LoadedJob loaded = job("{data: {kind: fsdp}, pipeline: {degree: 2}}");
  const auto form = report::explicit_strategy(loaded.job.strategy, mesh_of(loaded));
  CHECK(form["data"]["keep"] == "step");
  CHECK(form["data"]["reduce"] == "micro_batch");
  CHECK(form["data"]["replicate"] == 1);
  CHECK(form["pipeline"]["split"] == "auto");
  CHECK_FALSE(form.contains("tensor"));
}

}  // namespace
}  // namespace trainer
