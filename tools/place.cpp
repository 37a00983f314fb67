// Launcher, job and MPI are asked in this order, and must say the same.
#include "tools/place.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bitset>
#include <cstdio>
#include <cstdlib>

#include "engine/core/environment.h"
#include "engine/core/error.h"
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
          .end = [] { std::_Exit(kInputOutput); }};
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
  Talk talk(process);
  const std::vector<std::string> cores = talk.to_first(own_cores().str());
  const int unbound = threads_per_rank(ranks_per_node(job));
  if (environment::value_of(environment::kThreads)) return unbound;
  const int threads = std::atoi(talk.from_first(std::to_string(process.rank() == 0 ? fewest_threads(cores) : 0)).c_str());
  if (speaks() && 2 * threads <= unbound)
    say("the launcher binds each rank to cores for {} of the {} threads it could have here; mpirun --bind-to none gives it all of them\n", threads, unbound);
  return threads;
}

}  // namespace

Place take_place(const JobArguments& arguments) {
  const std::optional<Launcher> launcher = detect_launcher(process_environment());
  is_first = !launcher || launcher->rank == 0;
  Place place{arguments.load_to_run(launcher ? launcher->world_size : 0), nullptr, 1};
  place.threads = threads_per_rank(ranks_per_node(place.loaded.job));
  if (backend_of(place.loaded, launcher) != Backend::mpi) return place;
  place.process = connect(launcher);
  if (launcher && speaks()) say("launched by {}: {} processes, each a rank\n", launcher->source, launcher->world_size);
  abort_on_error(place.process.get(), [&] { place.threads = threads_of(*place.process, place.loaded.job); });
  return place;
}

bool speaks() { return is_first && !lost_another; }

void check_same_plan(const Place& place, const CompiledJob& compiled) {
  if (place.process == nullptr) return;
  const std::string mine = hash_of(compiled.plan), first = Talk(*place.process).from_first(mine);
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
