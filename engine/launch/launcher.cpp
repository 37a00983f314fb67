// Each source is read separately, then all are compared value by value.
#include "engine/launch/launcher.h"

#include <unistd.h>

#include <charconv>
#include <string_view>
#include <tuple>
#include <vector>

#include "engine/core/error.h"

namespace trainer {
namespace {

struct Value {
  std::string variable;
  int number = 0;
  std::string str() const { return variable + "=" + std::to_string(number); }
};

// What one source says. A source without rank and size does not count.
struct Source {
  std::string name;
  bool starts_mpi = false;
  std::optional<Value> rank, size, local_rank;
};

class Reader {
 public:
  explicit Reader(const EnvironmentMap& environment) : environment_(environment) {}

  bool has(const std::string& variable) const {
    return environment_.contains(variable) && !environment_.at(variable).empty();
  }

  std::optional<Value> number(const std::string& variable, int least) const {
    if (!has(variable)) return std::nullopt;
    const std::string& text = environment_.at(variable);
    Value value{variable, 0};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value.number);
    if (error != std::errc{} || end != text.data() + text.size() || value.number < least)
      throw UsageError(variable + "=" + text + ": a launcher sets a whole number of at least " + std::to_string(least) +
                       " here");
    return value;
  }

  std::string text(const std::string& variable) const { return has(variable) ? environment_.at(variable) : ""; }

 private:
  const EnvironmentMap& environment_;
};

Source open_mpi(const Reader& read) {
  return {"Open MPI", true, read.number("OMPI_COMM_WORLD_RANK", 0), read.number("OMPI_COMM_WORLD_SIZE", 1),
          read.number("OMPI_COMM_WORLD_LOCAL_RANK", 0)};
}

// Steps of Slurm's own (batch script, interactive shell, daemons) have numbers at the end of 32 bits.
bool is_srun_step(const Reader& read) {
  const std::string step = read.has("SLURM_STEP_ID") ? read.text("SLURM_STEP_ID") : read.text("SLURM_STEPID");
  unsigned long long number = 0;
  const auto [end, error] = std::from_chars(step.data(), step.data() + step.size(), number);
  return !step.empty() && error == std::errc{} && end == step.data() + step.size() && number < 0xFFFFFFF0ULL;
}

// mpirun starts its daemons by srun: what they hand down describes the daemon. It sets OMPI_UNIVERSE_SIZE besides the
// rank.
Source slurm(const Reader& read) {
  Source source{"Slurm", true, {}, {}, {}};
  if (!is_srun_step(read) || read.has("OMPI_UNIVERSE_SIZE")) return source;
  source.rank = read.number("SLURM_PROCID", 0);
  source.size = read.number(read.has("SLURM_NTASKS") ? "SLURM_NTASKS" : "SLURM_STEP_NUM_TASKS", 1);
  source.local_rank = read.number("SLURM_LOCALID", 0);
  return source;
}

Source pmix(const Reader& read) { return {"PMIx", true, read.number("PMIX_RANK", 0), read.number("PMIX_SIZE", 1), {}}; }

// MASTER_ADDR and MASTER_PORT alone are often exported for a whole batch script, and so say nothing of ranks.
Source torchrun(const Reader& read) {
  Source source{read.has("TRAINER_STARTED") ? "trainer run" : "torchrun-style variables", false, read.number("RANK", 0),
                read.number("WORLD_SIZE", 1), read.number("LOCAL_RANK", 0)};
  if (!source.rank && read.has("NNODES")) return {source.name, false, {}, {}, {}};  // once on each node: detect_node's
  if (!source.rank && source.size && read.has("JOB_COMPLETION_INDEX")) {
    source.name = "Kubernetes";
    source.rank = read.number("JOB_COMPLETION_INDEX", 0);
  }
  if (source.rank && source.size && read.has("MASTER_ADDR") != read.has("MASTER_PORT"))
    throw UsageError("half of MASTER_ADDR and MASTER_PORT is set: " +
                     std::string(read.has("MASTER_ADDR") ? "MASTER_ADDR=" + read.text("MASTER_ADDR")
                                                         : "MASTER_PORT=" + read.text("MASTER_PORT")) +
                     " needs " + (read.has("MASTER_ADDR") ? "MASTER_PORT" : "MASTER_ADDR"));
  return source;
}

bool says_anything(const Source& source) { return source.rank || source.size || source.local_rank; }

std::string said_by(const Source& source) {
  std::string text;
  for (const std::optional<Value>& value : {source.rank, source.size, source.local_rank})
    if (value) text += (text.empty() ? "" : ", ") + value->str();
  return source.name + " says " + text;
}

void check_whole(const Source& source, const char* rank, const char* size) {
  if (source.rank && source.size) return;
  throw UsageError("variables of a launcher are half set: " + said_by(source) + ", but not " +
                   (source.rank ? size : rank) + "; set all of them or none");
}

void check_consistent(const Source& source) {
  if (source.rank->number >= source.size->number)
    throw UsageError(said_by(source) + ": a rank is below the number of ranks");
  if (source.local_rank && source.local_rank->number > source.rank->number)
    throw UsageError(said_by(source) + ": a rank is numbered among all ranks, and so at least as high as on its node");
}

void check_agreement(const Source& a, const Source& b) {
  const auto differ = [](const std::optional<Value>& one, const std::optional<Value>& other) {
    return one && other && one->number != other->number;
  };
  if (!differ(a.rank, b.rank) && !differ(a.size, b.size) && !differ(a.local_rank, b.local_rank)) return;
  throw UsageError("launchers contradict each other: " + said_by(a) + "; " + said_by(b) +
                   "; unset the variables of the one that did not start this process");
}

}  // namespace

std::optional<NodePlace> detect_node(const EnvironmentMap& environment) {
  const Reader read(environment);
  const std::optional<Value> nodes = read.number("NNODES", 1);
  if (!nodes) return std::nullopt;
  const std::optional<Value> node = read.number(read.has("NODE_RANK") ? "NODE_RANK" : "JOB_COMPLETION_INDEX", 0);
  if (!node) throw UsageError(nodes->str() + " without NODE_RANK: which of the nodes this is, from 0");
  if (node->number >= nodes->number)
    throw UsageError(node->str() + ", " + nodes->str() + ": a node's number is below the number of nodes");
  return NodePlace{node->variable, node->number, nodes->number};
}

std::optional<Launcher> detect_launcher(const EnvironmentMap& environment) {
  const Reader read(environment);
  std::vector<Source> sources;
  for (const auto& [source, rank, size] :
       {std::tuple(open_mpi(read), "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        std::tuple(slurm(read), "SLURM_PROCID", "SLURM_NTASKS"), std::tuple(torchrun(read), "RANK", "WORLD_SIZE")}) {
    if (!says_anything(source)) continue;
    check_whole(source, rank, size);
    check_consistent(source);
    sources.push_back(source);
  }
  if (const Source source = pmix(read); says_anything(source)) {
    if (!source.rank || (!source.size && sources.empty())) check_whole(source, "PMIX_RANK", "PMIX_SIZE");
    if (source.size) check_consistent(source);
    sources.push_back(source);
  }
  if (sources.empty()) return std::nullopt;
  for (std::size_t i = 0; i < sources.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) check_agreement(sources[j], sources[i]);
  Launcher launcher;
  for (const Source& source : sources) {
    if (source.name != "PMIx" || launcher.source.empty())
      launcher.source += (launcher.source.empty() ? "" : " and ") + source.name;
    launcher.starts_mpi = launcher.starts_mpi || source.starts_mpi;
    launcher.rank = source.rank->number;
    if (source.size) launcher.world_size = source.size->number;
    if (source.local_rank) launcher.local_rank = source.local_rank->number;
  }
  return launcher;
}

EnvironmentMap process_environment() {
  EnvironmentMap map;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) map.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return map;
}

}  // namespace trainer
