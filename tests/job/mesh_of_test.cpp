// Meshes of jobs: which axis gets which ranks, and what is told where they do not divide.
#include "engine/compile/mesh_of.h"

#include <doctest/doctest.h>

namespace trainer {
namespace {

LoadedJob job(const std::string& strategy, const std::string& cluster) {
  return parse_job(
      "model: {graph: m.yaml}\ndata: {format: text, train: a.txt}\ntrain: {steps: 1, batch: {global: "
      "4800}}\nstrategy: " +
          strategy + "\ncluster: " + cluster + "\n",
      "job.yaml", {}, {.configs_dir = {}, .check_files = false});
}

struct Row {
  std::string strategy, cluster;
  std::array<int, 4> sizes;  // pipeline, replicate, shard, tensor
};

const std::string k8 = "{devices_per_node: 8}", k2x4 = "{nodes: 2, devices_per_node: 4, backend: mpi}";

const Row kTable[] = {
    {"auto", "{}", {1, 1, 1, 1}},
    {"auto", k8, {1, 8, 1, 1}},
    {"ddp", k8, {1, 8, 1, 1}},
    {"ddp", k2x4, {1, 8, 1, 1}},
    {"local_sgd", k8, {1, 8, 1, 1}},
    {"zero1", k8, {1, 1, 8, 1}},
    {"zero2", k8, {1, 1, 8, 1}},
    {"zero3", k2x4, {1, 1, 8, 1}},
    {"fsdp", k8, {1, 1, 8, 1}},
    {"fsdp", "{}", {1, 1, 1, 1}},
    {"tensor", k8, {1, 1, 1, 8}},
    {"pipeline", k8, {8, 1, 1, 1}},
    {"{data: {kind: fsdp, replicate: 2}}", k8, {1, 2, 4, 1}},
    {"{data: {kind: fsdp, sharding: shard_grad_op}}", k8, {1, 1, 8, 1}},
    {"{data: {kind: fsdp, sharding: no_shard}}", k8, {1, 8, 1, 1}},
    {"{data: {kind: fsdp, sharding: hybrid_shard}}", k2x4, {1, 2, 4, 1}},
    {"{data: {kind: fsdp, sharding: hybrid_shard, replicate: 4}}", k2x4, {1, 4, 2, 1}},
    {"{data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}}", k8, {1, 2, 4, 1}},
    {"{tensor: {degree: 2}}", k8, {1, 4, 1, 2}},
    {"{data: {kind: zero1}, tensor: {degree: 2}}", k8, {1, 1, 4, 2}},
    {"{data: {kind: fsdp}, tensor: {degree: 2}, pipeline: {degree: 2}}", k8, {2, 1, 2, 2}},
    {"{data: {kind: fsdp, replicate: 2}, tensor: {degree: 2}, pipeline: {degree: 2}}", k8, {2, 2, 1, 2}},
    {"{data: {kind: fsdp, sharding: hybrid_shard}, tensor: {degree: 2}}", k2x4, {1, 2, 2, 2}},
    {"{tensor: {degree: 4}, pipeline: {degree: 2}}", k8, {2, 1, 1, 4}},
    {"{context: {degree: 4}}", k8, {1, 2, 1, 1}},
    {"{data: {kind: fsdp}, context: {degree: 2}, tensor: {degree: 2}}", k8, {1, 1, 2, 2}},
    {"{data: {kind: ddp}, pipeline: {degree: 3}}", "{devices_per_node: 12}", {3, 4, 1, 1}},
};

TEST_CASE("the data axes take what pipeline and tensor leave") {
  for (const Row& row : kTable) {
    CAPTURE(row.strategy);
    CAPTURE(row.cluster);
    const LoadedJob loaded = job(row.strategy, row.cluster);
    const Mesh mesh = mesh_of(loaded);
    CHECK(std::array{mesh.size(Axis::pipeline), mesh.size(Axis::replicate), mesh.size(Axis::shard),
                     mesh.size(Axis::tensor)} == row.sizes);
    CHECK(mesh.world_size() == loaded.job.cluster.nodes * loaded.job.cluster.devices_per_node.value_or(1));
  }
}

std::string mistake(const std::string& strategy, const std::string& cluster) {
  try {
    mesh_of(job(strategy, cluster));
  } catch (const JobError& error) {
    const Diagnostic& first = error.diagnostics().front();
    return std::to_string(error.diagnostics().size()) + " " + first.path + "@" + std::to_string(first.line) + ":" +
           std::to_string(first.column) + " " + first.message + "; " + first.allowed;
  }
  return "";
}

TEST_CASE("a degree that does not divide is told at its place, with the degrees that do") {
  CHECK(mistake("{tensor: {degree: 3}}", k8) ==
        "1 strategy.tensor.degree@4:29 does not divide the 8 ranks; 1, 2, 4 or 8");
  CHECK(mistake("{pipeline: {degree: 16}}", k8) ==
        "1 strategy.pipeline.degree@4:31 does not divide the 8 ranks; 1, 2, 4 or 8");
  CHECK(mistake("{tensor: {degree: 4}, pipeline: {degree: 4}}", k8) ==
        "1 strategy.tensor.degree@4:29 does not divide the 2 ranks that other axes leave of 8; 1 or 2");
  CHECK(mistake("{data: {kind: fsdp, replicate: 3}}", k8) ==
        "1 strategy.data.replicate@4:42 does not divide the 8 ranks; 1, 2, 4 or 8");
  // The file alone does not say how many devices there are.
  CHECK(mistake("{tensor: {degree: 2}}", "{}") ==
        "1 strategy.tensor.degree@4:29 does not divide the one rank that cluster.devices_per_node: auto is; 1");
  CHECK(mistake("{pipeline: {degree: 2}, tensor: {degree: 2}}", "{nodes: 2, backend: mpi}") ==
        "1 strategy.tensor.degree@4:52 does not divide the one rank that other axes leave of 2; 1");
}

TEST_CASE("hybrid_shard knows its replicas by the nodes or by their number") {
  const std::string hybrid = "{data: {kind: fsdp, sharding: hybrid_shard}";
  CHECK(mistake(hybrid + "}", k8) ==
        "1 strategy.data.sharding@4:41 hybrid_shard shards inside a node and replicates across nodes, and there is one "
        "node; "
        "hybrid_shard with strategy.data.replicate, or full_shard");
  CHECK(mistake(hybrid + ", pipeline: {degree: 3}}", "{nodes: 3, devices_per_node: 4, backend: mpi}") ==
        "1 strategy.data.replicate@4:12 auto is the number of nodes, 3, which does not divide the 4 ranks that other "
        "axes leave of 12; 1, 2 or 4");
}

TEST_CASE("a secondary copy is a node's, or of as many ranks as are asked for") {
  const auto sizes = [](const std::string& strategy, const std::string& cluster) {
    const Mesh mesh = mesh_of(job(strategy, cluster));
    return std::array{mesh.size(Axis::pipeline), mesh.size(Axis::replicate), mesh.size(Axis::shard),
                      mesh.size(Axis::context), mesh.size(Axis::tensor)};
  };
  const std::string node = "{data: {kind: zero3, secondary: node}", four = "{data: {kind: fsdp, secondary: 4}";
  CHECK(sizes(node + "}", k2x4) == std::array{1, 2, 4, 1, 1});
  CHECK(sizes(four + "}", k8) == std::array{1, 2, 4, 1, 1});
  CHECK(sizes(node + ", tensor: {degree: 2}}", k2x4) == std::array{1, 2, 2, 1, 2});
  CHECK(sizes(node + ", context: {degree: 2}}", k2x4) == std::array{1, 2, 2, 2, 1});
  CHECK(sizes(node + ", context: {degree: 4}}", k2x4) == std::array{1, 2, 1, 4, 1});
  CHECK(sizes(node + ", pipeline: {degree: 2}}", "{nodes: 4, devices_per_node: 4, backend: mpi}") ==
        std::array{2, 2, 4, 1, 1});
  const std::string at = "1 strategy.data.secondary@4:";
  CHECK(mistake(node + "}", k8) == at + "43 there is one node, and gathers stay inside it; none, or a number of ranks");
  CHECK(mistake(node + ", tensor: {degree: 4}}", k2x4) ==
        at + "43 tensor 4 leaves a node of 4 ranks none that share a copy; none");
  CHECK(mistake(node + ", pipeline: {degree: 2}}", k2x4) ==
        at + "43 4 ranks are to share a copy, and 4 gather together; none, or a divisor of that below it");
  CHECK(mistake(node + ", context: {degree: 8}}", "{nodes: 4, devices_per_node: 4, backend: mpi}") ==
        at + "43 4 ranks are to share a copy, and expert and context parallelism take 8 side by side; none, or a "
             "multiple of that");
  CHECK(mistake("{data: {kind: fsdp, secondary: 3}}", k8) ==
        at + "42 3 ranks are to share a copy, and 8 gather together; none, or a divisor of that below it");
}

TEST_CASE("more ranks than a mesh holds are refused") {
  CHECK(mistake("auto", "{nodes: 1000000, devices_per_node: 4096, backend: mpi}").find("at most 1000000") !=
        std::string::npos);
}

}  // namespace
}  // namespace trainer
