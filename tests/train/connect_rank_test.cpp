// What a process works out before it meets the other ranks: its share of the cores, its node, and the ranks that it
// starts.
#include "engine/train/connect_rank.h"

#include <doctest/doctest.h>

#include "engine/core/error.h"
#include "tests/temporary.h"

using namespace trainer;
using trainer::tests::contains;
using trainer::tests::message_of;

namespace {

// Cores [first, last) of eight.
Cores cores(const std::string& host, int first, int last) {
  Cores result{host, std::vector<bool>(8, false)};
  for (int core = first; core < last; ++core) result.usable[static_cast<std::size_t>(core)] = true;
  return result;
}

Job job_on_gpus(int devices) {
  Job job;
  job.cluster.device = Device::cuda;
  job.cluster.devices_per_node = devices;
  return job;
}

}  // namespace

TEST_CASE("ranks that may use the same cores share them, and the rank with the fewest decides") {
  CHECK(fewest_threads({cores("a", 0, 8)}) == 8);
  CHECK(fewest_threads({cores("a", 0, 4), cores("a", 4, 8)}) == 4);                    // bound apart
  CHECK(fewest_threads({cores("a", 0, 8), cores("a", 0, 8)}) == 4);                    // bound nowhere
  CHECK(fewest_threads({cores("a", 0, 8), cores("b", 0, 8)}) == 8);                    // of two machines
  CHECK(fewest_threads({cores("a", 0, 8), cores("b", 0, 2)}) == 2);                    // the smaller one decides
  CHECK(fewest_threads({cores("a", 0, 5), cores("a", 4, 8)}) == 2);                    // one core in common
  CHECK(fewest_threads({cores("a", 0, 1), cores("a", 0, 1), cores("a", 0, 1)}) == 1);  // never none
}

TEST_CASE("cores travel as text") {
  const Cores sent = cores("a node's name", 2, 5), received = Cores::parse(sent.str());
  CHECK(received.host == sent.host);
  CHECK(received.usable == sent.usable);
}

TEST_CASE("a node says which of the job's nodes it is") {
  CHECK(node_of_job({}, 1).nodes == 1);
  const EnvironmentMap second{
      {"NNODES", "2"}, {"NODE_RANK", "1"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};
  CHECK(node_of_job(second, 2).node == 1);
  CHECK(
      contains(message_of<UsageError>([&] { node_of_job(second, 4); }), "NNODES=2, but the job has 4 (cluster.nodes)"));
  CHECK(contains(message_of<UsageError>([&] { node_of_job(second, 1); }), "NNODES=2, but the job has 1"));
  CHECK(contains(message_of<UsageError>([] { node_of_job({}, 2); }),
                 "the job has 2 nodes: start this command on each of them with NNODES=2, NODE_RANK=0 to 1"));
  CHECK(!message_of<UsageError>([] {
           node_of_job({{"NNODES", "2"}, {"NODE_RANK", "0"}}, 2);
         }).empty());  // nobody says where rank 0 is
}

TEST_CASE("a node starts a rank for each of its GPUs") {
  const RanksToStart alone = gpu_ranks_of(job_on_gpus(4), {"", 0, 1}, {}, 8, false);
  CHECK(alone.ranks == 4);
  CHECK(alone.first_rank == 0);
  CHECK(alone.environment.at("WORLD_SIZE") == "4");
  CHECK(alone.environment.contains("MASTER_PORT"));  // they meet on this machine
  CHECK(!alone.more);

  const RanksToStart second = gpu_ranks_of(job_on_gpus(4), {"NODE_RANK", 1, 2}, {}, 4, false);
  CHECK(second.first_rank == 4);
  CHECK(second.environment.at("WORLD_SIZE") == "8");
  CHECK(!second.environment.contains("MASTER_PORT"));  // the environment that both nodes have says where

  CHECK(contains(message_of<UsageError>([] {
                   gpu_ranks_of(job_on_gpus(4), {"", 0, 1}, {{"CUDA_VISIBLE_DEVICES", "0,1"}}, 2, false);
                 }),
                 "the job has 4 GPUs on each node, but 2 can be used here (CUDA_VISIBLE_DEVICES=0,1)"));
  const RanksToStart shared = gpu_ranks_of(job_on_gpus(2), {"", 0, 1}, {}, 1, true);
  REQUIRE(shared.more);
  CHECK(shared.more(0).at("NCCL_HOSTID") != shared.more(1).at("NCCL_HOSTID"));
}
