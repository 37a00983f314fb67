// Launchers by their variables: a table of environments, and what is made of each.
#include "engine/launch/launcher.h"

#include <doctest/doctest.h>

#include <array>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "tests/temporary.h"

namespace trainer::launcher_test {

using trainer::tests::contains;
using trainer::tests::message_of;

namespace {

const EnvironmentMap kOpenMpi{
    {"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
const EnvironmentMap kSlurm{
    {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}};
const EnvironmentMap kTorchrun{
    {"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
const EnvironmentMap kPmix{{"PMIX_RANK", "5"}, {"PMIX_SIZE", "8"}};

const EnvironmentMap kKubernetes{
    {"JOB_COMPLETION_INDEX", "5"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "job-0.ranks"}, {"MASTER_PORT", "29500"}};

EnvironmentMap operator+(EnvironmentMap a, const EnvironmentMap& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

EnvironmentMap without(EnvironmentMap map, const std::string& name) {
  map.erase(name);
  return map;
}

std::string refusal(const EnvironmentMap& environment) {
  return message_of<UsageError>([&] { detect_launcher(environment); });
}

}  // namespace

TEST_CASE("every launcher says rank, size and local rank in its own variables") {
  struct Case {
    EnvironmentMap environment;
    const char* source;
    bool starts_mpi, has_local_rank;
  };
  const std::vector<Case> cases{
      {kOpenMpi, "Open MPI", true, true},
      {kSlurm, "Slurm", true, true},
      {kTorchrun, "torchrun-style variables", false, true},
      {kPmix, "PMIx", true, false},
      {without(kTorchrun, "LOCAL_RANK"), "torchrun-style variables", false, false},
      {kTorchrun + EnvironmentMap{{"TRAINER_STARTED", "1"}}, "trainer run", false, true},
      {kKubernetes, "Kubernetes", false, false},
      {kKubernetes + EnvironmentMap{{"LOCAL_RANK", "1"}}, "Kubernetes", false, true},
      {kTorchrun + EnvironmentMap{{"JOB_COMPLETION_INDEX", "1"}}, "torchrun-style variables", false,
       true},  // torchrun in each pod
      {without(without(kTorchrun, "MASTER_ADDR"), "MASTER_PORT"), "torchrun-style variables", false, true},
      {kOpenMpi + EnvironmentMap{{"PMIX_RANK", "5"}}, "Open MPI", true, true},
      {kSlurm + EnvironmentMap{{"PMIX_RANK", "5"}}, "Slurm", true, true},
      {kSlurm + kTorchrun, "Slurm and torchrun-style variables", true, true},
      {kOpenMpi + kSlurm, "Open MPI and Slurm", true, true},
      {without(kSlurm, "SLURM_STEP_ID") + EnvironmentMap{{"SLURM_STEPID", "3"}}, "Slurm", true, true},
      {kOpenMpi + EnvironmentMap{{"RANK", ""}}, "Open MPI", true, true},  // set to nothing is not set
      {kOpenMpi + EnvironmentMap{{"MASTER_ADDR", "node0"}}, "Open MPI", true, true},
      // mpirun in an allocation of Slurm's: its daemon on the second of two nodes, started by srun, hands its own place
      // down.
      {kOpenMpi +
           EnvironmentMap{
               {"OMPI_UNIVERSE_SIZE", "8"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}},
       "Open MPI", true, true},
  };
  for (const Case& one : cases) {
    CAPTURE(std::string(one.source));
    const std::optional<Launcher> launcher = detect_launcher(one.environment);
    REQUIRE(launcher);
    CHECK(launcher->source == one.source);
    CHECK(launcher->rank == 5);
    CHECK(launcher->world_size == 8);
    CHECK(launcher->starts_mpi == one.starts_mpi);
    CHECK(launcher->local_rank == (one.has_local_rank ? std::optional(1) : std::nullopt));
  }
}

TEST_CASE("where no launcher started the process, nothing is found") {
  const std::vector<EnvironmentMap> environments{
      {},
      {{"PATH", "/bin"}, {"OMPI_ALLOW_RUN_AS_ROOT", "1"}},
      {{"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}},  // exported for a whole batch script
      {{"JOB_COMPLETION_INDEX", "3"}},  // an indexed job of processes that have nothing to do with each other
      {{"JOB_COMPLETION_INDEX", "3"}, {"NNODES", "4"}},  // once on each node: detect_node's
      kKubernetes + EnvironmentMap{{"NNODES", "8"}},
      without(kSlurm, "SLURM_STEP_ID"),                          // a batch script: Slurm's variables without a step
      kSlurm + EnvironmentMap{{"SLURM_STEP_ID", "4294967291"}},  // Slurm's own step for a batch script
      kSlurm + EnvironmentMap{{"SLURM_STEP_ID", "4294967290"}},  // the same for an interactive shell
  };
  for (const EnvironmentMap& environment : environments) CHECK(!detect_launcher(environment));
}

TEST_CASE("half-set variables are refused, with what is set and what is not") {
  CHECK(refusal(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE")) ==
        "variables of a launcher are half set: Open MPI says OMPI_COMM_WORLD_RANK=5, OMPI_COMM_WORLD_LOCAL_RANK=1, but "
        "not OMPI_COMM_WORLD_SIZE; set "
        "all of them or none");
  const std::vector<std::pair<EnvironmentMap, const char*>> cases{
      {without(kOpenMpi, "OMPI_COMM_WORLD_RANK"), "but not OMPI_COMM_WORLD_RANK"},
      {without(kSlurm, "SLURM_PROCID"), "but not SLURM_PROCID"},
      {without(kSlurm, "SLURM_NTASKS"), "but not SLURM_NTASKS"},
      {without(kPmix, "PMIX_SIZE"), "but not PMIX_SIZE"},
      {without(kPmix, "PMIX_RANK"), "but not PMIX_RANK"},
      {{{"RANK", "0"}}, "RANK=0, but not WORLD_SIZE"},
      {{{"WORLD_SIZE", "2"}}, "WORLD_SIZE=2, but not RANK"},
      {{{"LOCAL_RANK", "0"}}, "LOCAL_RANK=0, but not RANK"},
      {kOpenMpi + EnvironmentMap{{"RANK", "5"}}, "RANK=5, but not WORLD_SIZE"},
      {without(kTorchrun, "MASTER_PORT"), "MASTER_ADDR=node0 needs MASTER_PORT"},
      {without(kTorchrun, "MASTER_ADDR"), "MASTER_PORT=29500 needs MASTER_ADDR"},
  };
  for (const auto& [environment, part] : cases) {
    CAPTURE(std::string(part));
    CHECK(contains(refusal(environment), part));
  }
}

TEST_CASE("launchers that contradict each other are refused, both with their values") {
  const std::vector<std::pair<EnvironmentMap, std::array<const char*, 2>>> cases{
      {kOpenMpi + kTorchrun + EnvironmentMap{{"RANK", "4"}}, {"OMPI_COMM_WORLD_RANK=5", "RANK=4"}},
      {kOpenMpi + kTorchrun + EnvironmentMap{{"WORLD_SIZE", "16"}}, {"OMPI_COMM_WORLD_SIZE=8", "WORLD_SIZE=16"}},
      {kOpenMpi + kTorchrun + EnvironmentMap{{"LOCAL_RANK", "3"}}, {"OMPI_COMM_WORLD_LOCAL_RANK=1", "LOCAL_RANK=3"}},
      {kSlurm + kTorchrun + EnvironmentMap{{"RANK", "0"}, {"LOCAL_RANK", "0"}}, {"SLURM_PROCID=5", "RANK=0"}},
      {kSlurm + kOpenMpi + EnvironmentMap{{"SLURM_PROCID", "6"}}, {"OMPI_COMM_WORLD_RANK=5", "SLURM_PROCID=6"}},
      {kOpenMpi + EnvironmentMap{{"PMIX_RANK", "2"}}, {"OMPI_COMM_WORLD_RANK=5", "PMIX_RANK=2"}},
      {kSlurm + kPmix + EnvironmentMap{{"PMIX_SIZE", "9"}}, {"SLURM_NTASKS=8", "PMIX_SIZE=9"}},
  };
  for (const auto& [environment, parts] : cases) {
    CAPTURE(std::string(parts[1]));
    const std::string message = refusal(environment);
    CHECK(contains(message, "contradict"));
    for (const char* part : parts) CHECK(contains(message, part));
  }
}

TEST_CASE("what is no rank of that many is refused with its variable") {
  const std::vector<std::pair<EnvironmentMap, const char*>> cases{
      {kOpenMpi + EnvironmentMap{{"OMPI_COMM_WORLD_RANK", "8"}}, "OMPI_COMM_WORLD_RANK=8"},
      {kOpenMpi + EnvironmentMap{{"OMPI_COMM_WORLD_RANK", "-1"}}, "OMPI_COMM_WORLD_RANK=-1"},
      {kOpenMpi + EnvironmentMap{{"OMPI_COMM_WORLD_SIZE", "0"}}, "OMPI_COMM_WORLD_SIZE=0"},
      {kTorchrun + EnvironmentMap{{"RANK", "five"}}, "RANK=five"},
      {kTorchrun + EnvironmentMap{{"WORLD_SIZE", "8.0"}}, "WORLD_SIZE=8.0"},
      {kTorchrun + EnvironmentMap{{"WORLD_SIZE", "99999999999"}}, "WORLD_SIZE=99999999999"},
      {kTorchrun + EnvironmentMap{{"LOCAL_RANK", "6"}}, "LOCAL_RANK=6"},
      {kPmix + EnvironmentMap{{"PMIX_RANK", "8"}}, "PMIX_RANK=8"},
      {kSlurm + EnvironmentMap{{"SLURM_PROCID", " 1"}}, "SLURM_PROCID= 1"},
  };
  for (const auto& [environment, part] : cases) {
    CAPTURE(std::string(part));
    CHECK(contains(refusal(environment), part));
  }
}

TEST_CASE("a process that is started once on each node knows which it is") {
  for (const char* variable : {"NODE_RANK", "JOB_COMPLETION_INDEX"}) {
    const std::optional<NodePlace> place = detect_node({{"NNODES", "4"}, {variable, "3"}});
    REQUIRE(place);
    CHECK(place->source == variable);
    CHECK(place->node == 3);
    CHECK(place->nodes == 4);
  }
  CHECK(detect_node({{"NNODES", "4"}, {"NODE_RANK", "1"}, {"JOB_COMPLETION_INDEX", "3"}})->node == 1);
  CHECK(!detect_node({{"NODE_RANK", "3"}}));
  CHECK(contains(message_of<UsageError>([] { detect_node({{"NNODES", "4"}}); }), "NNODES=4 without NODE_RANK"));
  CHECK(contains(message_of<UsageError>([] {
                   detect_node({{"NNODES", "4"}, {"NODE_RANK", "4"}});
                 }),
                 "NODE_RANK=4, NNODES=4: a node's number is below"));
}

}  // namespace trainer::launcher_test
