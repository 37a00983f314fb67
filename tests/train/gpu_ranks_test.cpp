// Ranks on GPUs, without one: which backend, which GPU, and what is wrong with where they are.
#include <doctest/doctest.h>

#include "engine/comm/stream_communicator.h"
#include "engine/core/error.h"
#include "engine/train/ranks.h"
#include "tests/temporary.h"

using namespace trainer;
using trainer::rendezvous::RankPlace;
using trainer::tests::contains;
using trainer::tests::message_of;

namespace {

Launcher launcher(int rank, int world, std::optional<int> local) { return {"Slurm", rank, world, local, true}; }

LoadedJob job(Backend backend, int nodes, int devices) {
  LoadedJob loaded;
  loaded.job.cluster.device = Device::cuda;
  loaded.job.cluster.backend = backend;
  loaded.job.cluster.nodes = nodes;
  loaded.job.cluster.devices_per_node = devices;
  return loaded;
}

}  // namespace

TEST_CASE("a rank takes the GPU of its local rank, or the only one that it sees") {
  CHECK(gpu_of_rank(launcher(9, 16, 1), 8, false) == 1);
  CHECK(gpu_of_rank(launcher(9, 16, 1), 1, false) == 0);  // whoever started it gave each process its own
  CHECK(gpu_of_rank(launcher(9, 16, std::nullopt), 1, false) == 0);
  CHECK(gpu_of_rank(launcher(3, 4, 3), 2, true) == 1);
  CHECK(contains(message_of<UsageError>([] { gpu_of_rank(launcher(5, 8, 5), 4, false); }),
                 "rank 5 has local rank 5, but its node has 4 GPUs"));
  CHECK(contains(message_of<UsageError>([] { gpu_of_rank(launcher(5, 8, std::nullopt), 4, false); }),
                 "Slurm does not say which rank of its node it is: export LOCAL_RANK"));
  CHECK(contains(message_of<UsageError>([] { gpu_of_rank(launcher(5, 8, 5), 0, false); }), "rank 5 sees no GPU"));
}

TEST_CASE("two ranks on one GPU are an error on all; ranks of a node on two nodes are a warning") {
  const std::vector<RankPlace> right{{"a", "GPU-1", 0}, {"a", "GPU-2", 1}, {"b", "GPU-1", 0}, {"b", "GPU-2", 1}};
  CHECK(misplaced(right, 2, false) == "");
  std::vector<RankPlace> twice = right;
  twice[3].fingerprint = "GPU-1";
  CHECK(contains(message_of<UsageError>([&] { misplaced(twice, 2, false); }), "ranks 2 and 3 are both on GPU-1 of b"));
  CHECK(misplaced(twice, 2, true) == "");
  CHECK(contains(misplaced({{"a", "GPU-1", 0}, {"b", "GPU-1", 0}, {"a", "GPU-2", 1}, {"b", "GPU-2", 1}}, 2, false),
                 "ranks 0 and 1 on one node, but they are on a and b"));
}

TEST_CASE("several GPUs speak NCCL, whoever starts the ranks; one alone needs no backend") {
  CHECK(backend_of(job(Backend::automatic, 1, 1), std::nullopt) == Backend::threads);
  CHECK(contains(message_of<JobError>([] { backend_of(job(Backend::mpi, 1, 2), std::nullopt); }),
                 "ranks on GPUs speak NCCL"));
  const std::string other_world =
      message_of<UsageError>([] { backend_of(job(Backend::nccl, 2, 8), launcher(0, 8, 0)); });
  CHECK(contains(other_world,
                 "Slurm started 8 ranks, but the job has 16 ranks: cluster.nodes 2 × cluster.devices_per_node 8"));
  for (const std::optional<Launcher>& by : {std::optional<Launcher>(), std::optional(launcher(1, 2, 1))}) {
    if (has_nccl())
      CHECK(backend_of(job(Backend::automatic, 1, 2), by) == Backend::nccl);
    else
      CHECK(contains(message_of<JobError>([&] { backend_of(job(Backend::automatic, 1, 2), by); }),
                     "several GPUs need NCCL, which this build has not"));
  }
}
