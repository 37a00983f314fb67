// Launcher, job and MPI are asked in this order, and must say the same.
#include "tools/place.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bitset>
#include <cstdio>
#include <cstdlib>

#include "engine/comm/stream_communicator.h"
#include "engine/core/check.h"
#include "engine/core/environment.h"
#include "engine/core/error.h"
#include "engine/launch/rendezvous.h"
#include "engine/launch/start_ranks.h"
#include "engine/run/cuda_device.h"
#include "engine/train/ranks.h"

namespace trainer::tools {
namespace {

std::atomic<bool> is_first = true, lost_another = false;
static_assert(std::atomic<bool>::is_always_lock_free);

OnLoss on_loss(int rank) {
  return {.tell =
              [rank](const std::string& message) {
                lost_another = true;  // what the launcher does to us from now on is no news
                say("trainer: rank {}: {}\n", rank, message);
              },
          .end = [] { std::_Exit(exit_after_loss()); }};
}

std::unique_ptr<Communicator> connect(const std::optional<Launcher>& launcher) {
  const int rank = launcher ? launcher->rank : 0, world = launcher ? launcher->world_size : 1;
  std::unique_ptr<Communicator> process = mpi_communicator(on_loss(rank));
  if (process->rank() == rank && process->world_size() == world) return process;
  const std::string mistake = fmt::format("{} says rank {} of {}, but MPI says rank {} of {}; does the launcher belong to the MPI of this build (srun --mpi=pmix)?",
                                          launcher ? launcher->source : "no launcher", rank, world, process->rank(), process->world_size());
  process->abort(mistake);
  throw UsageError(mistake);
}

bool shares_gpus() { return environment::value_of(environment::kShareGpu) == "1"; }

// Under NCCL_COMM_ID NCCL's own connections bring the ranks together, and nothing is told beside its id.
std::unique_ptr<Communicator> connect_gpus(const Launcher& launcher, const Job& job) {
  const EnvironmentMap environment = process_environment();
  const int ordinal = gpu_of_rank(launcher, num_gpus(), shares_gpus());
  NcclPlace place{launcher.rank, launcher.world_size, ordinal, ""};
  if (!environment.contains("NCCL_COMM_ID")) {
    Rendezvous rendezvous = Rendezvous::from(environment, launcher.rank, launcher.world_size, launcher.local_rank.value_or(-1));
    rendezvous.notice = [](const std::string& text) { say("{}\n", text); };
    if (const std::optional<Gpu> gpu = describe_gpu(ordinal)) rendezvous.fingerprint = gpu->uuid;
    const Gathered all = meet(rendezvous, launcher.rank == 0 ? nccl_unique_id() : "");
    const std::string warning = misplaced(all.places, ranks_per_node(job), shares_gpus());
    if (!warning.empty() && speaks()) say("warning: {}\n", warning);
    place.id = all.payload;
  }
  return nccl_communicator(place, on_loss(launcher.rank));
}

// The cores that this process may use, as a launcher binds it, and the machine they are of.
struct Cores {
  std::string host;
  std::bitset<CPU_SETSIZE> mask;

  std::string str() const { return mask.to_string() + host; }
  static Cores parse(const std::string& text) { return {text.substr(CPU_SETSIZE), std::bitset<CPU_SETSIZE>(text.substr(0, CPU_SETSIZE))}; }
};

Cores own_cores() {
  Cores cores;
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  cores.host = host;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    for (std::size_t core = 0; core < CPU_SETSIZE; ++core) cores.mask[core] = CPU_ISSET(core, &set);
  return cores;
}

// Ranks that may use the same cores share them; the rank with the fewest decides, since all run one plan.
int fewest_threads(const std::vector<std::string>& ranks) {
  std::vector<Cores> all;
  for (const std::string& text : ranks) all.push_back(Cores::parse(text));
  std::size_t fewest = CPU_SETSIZE;
  for (const Cores& mine : all) {
    const auto sharing = std::count_if(all.begin(), all.end(), [&](const Cores& other) { return other.host == mine.host && (other.mask & mine.mask).any(); });
    fewest = std::min(fewest, mine.mask.count() / static_cast<std::size_t>(std::max<std::ptrdiff_t>(1, sharing)));
  }
  return static_cast<int>(std::max<std::size_t>(1, fewest));
}

int threads_of(Communicator& process, const Job& job) {
  ControlChannel channel(process);
  const std::vector<std::string> cores = channel.to_first(own_cores().str());
  const int unbound = threads_per_rank(ranks_per_node(job));
  if (environment::value_of(environment::kThreads)) return unbound;
  const int threads = std::atoi(channel.from_first(std::to_string(process.rank() == 0 ? fewest_threads(cores) : 0)).c_str());
  if (speaks() && 2 * threads <= unbound)
    say("the launcher binds each rank to cores for {} of the {} threads it could have here; mpirun --bind-to none gives it all of them\n", threads, unbound);
  return threads;
}

// Of a job whose ranks this process starts on its node.
NodePlace own_node(const EnvironmentMap& environment, int nodes) {
  const std::optional<NodePlace> node = detect_node(environment);
  if (nodes == 1 && (!node || node->nodes == 1)) return {"", 0, 1};
  if (!node)
    throw UsageError(fmt::format("the job has {} nodes: start this command on each of them with NNODES={}, NODE_RANK=0 to {}, MASTER_ADDR and MASTER_PORT, or once for each GPU by srun or mpirun "
                                 "(configs/cluster/README.md)", nodes, nodes, nodes - 1));
  if (node->nodes != nodes) throw UsageError(fmt::format("NNODES={}, but the job has {} (cluster.nodes)", node->nodes, nodes));
  Rendezvous::from(environment, 0, 2, 0);  // what is missing is said once, not by every rank
  return *node;
}

// NNODES says that this command was started on each of several nodes. On CPUs that starts as many runs that know nothing of each other.
void refuse_one_of_several(const Job& job, const std::optional<Launcher>& launcher) {
  if (launcher || job.cluster.device != Device::cpu) return;
  const std::optional<NodePlace> node = detect_node(process_environment());
  if (node && node->nodes > 1)
    throw UsageError(fmt::format("NNODES={}, but on CPUs the ranks of several nodes are started by mpirun or srun; unset NNODES to train on this node only", node->nodes));
}

}  // namespace

Place take_place(const JobArguments& arguments) {
  const std::optional<Launcher> launcher = detect_launcher(process_environment());
  is_first = !launcher || launcher->rank == 0;
  Place place{arguments.load_to_run(launcher ? launcher->world_size : 0), nullptr, 1};
  for (const Diagnostic& warning : place.loaded.warnings)
    if (speaks()) say("{}\n", warning.str());
  place.threads = threads_per_rank(ranks_per_node(place.loaded.job));
  const Backend backend = backend_of(place.loaded, launcher);
  if (backend == Backend::threads) {
    refuse_one_of_several(place.loaded.job, launcher);
    return place;
  }
  CHECK(backend == Backend::mpi || launcher, "ranks on GPUs were started by someone");
  place.process = backend == Backend::mpi ? connect(launcher) : connect_gpus(*launcher, place.loaded.job);
  if (launcher && speaks()) say("launched by {}: {} processes, each a rank\n", launcher->source, launcher->world_size);
  abort_on_error(place.process.get(), [&] { place.threads = threads_of(*place.process, place.loaded.job); });
  return place;
}

std::optional<int> run_as_ranks(const JobArguments& arguments) {
  const EnvironmentMap environment = process_environment();
  const std::optional<Launcher> launcher = detect_launcher(environment);
  if (launcher) return std::nullopt;
  const LoadedJob loaded = arguments.load_to_run();
  if (backend_of(loaded, launcher) != Backend::nccl) return std::nullopt;
  const int ranks = ranks_per_node(loaded.job), nodes = static_cast<int>(loaded.job.cluster.nodes), gpus = num_gpus();
  const NodePlace node = own_node(environment, nodes);
  if (gpus < ranks && !shares_gpus())
    throw UsageError(fmt::format("the job has {} GPUs on each node, but {} can be used here (CUDA_VISIBLE_DEVICES={}): cluster.devices_per_node={} takes those", ranks, gpus,
                                 environment.contains("CUDA_VISIBLE_DEVICES") ? environment.at("CUDA_VISIBLE_DEVICES") : "not set", gpus));
  RanksToStart start;
  start.command = own_command();
  start.ranks = ranks;
  start.first_rank = node.node * ranks;
  start.environment = nodes == 1 ? meeting_on_this_machine(ranks) : std::map<std::string, std::string>{{"WORLD_SIZE", std::to_string(nodes * ranks)}, {environment::kStarted.name, "1"}};
  // NCCL takes two ranks on one GPU of one host for a mistake.
  if (shares_gpus()) start.more = [&](int local) { return std::map<std::string, std::string>{{"NCCL_HOSTID", fmt::format("{}-{}", host_name(), node.node * ranks + local)}}; };
  start.orderly = {kDone, kStopped};
  start.consequence = kConsequence;
  start.say = [](const std::string& line) { say("trainer: {}\n", line); };
  say("starting {} ranks, a process for each GPU{}\n", ranks, nodes == 1 ? "" : fmt::format(", on node {} of {} ({})", node.node, nodes, node.source));
  const int code = start_ranks(start).code;
  return code == kConsequence ? static_cast<int>(kInputOutput) : code;
}

bool speaks() { return is_first && !lost_another; }

void check_same_plan(const Place& place, const CompiledJob& compiled) {
  if (place.process == nullptr) return;
  const std::string mine = hash_of(compiled.plan), first = ControlChannel(*place.process).from_first(mine);
  if (mine != first)
    throw UsageError(fmt::format("rank {} has another plan than rank 0 ({} and {}): job file, overrides or kind of machine differ", place.process->rank(), mine, first));
}

void leave_stdout_to_the_first() {
  try {
    const std::optional<Launcher> launcher = detect_launcher(process_environment());
    if (launcher && launcher->rank > 0 && std::freopen("/dev/null", "w", stdout) == nullptr) throw IoError("cannot open /dev/null");
  } catch (const UsageError&) {
    // Commands that need to know who started them say what is wrong; the others need not.
  }
}

}  // namespace trainer::tools
