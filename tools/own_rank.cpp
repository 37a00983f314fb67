// What engine/train/connect_rank.h does, with this command's streams and exit codes.
#include "tools/own_rank.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "engine/core/error.h"
#include "engine/run/cuda_device.h"
#include "engine/train/inputs.h"
#include "engine/train/ranks.h"

namespace trainer::tools {
namespace {

std::atomic<bool> is_first = true, lost_another = false;
static_assert(std::atomic<bool>::is_always_lock_free);

RankListener listener(int rank) {
  RankListener listener;
  listener.on_loss.tell = [rank](const std::string& message) {
    lost_another = true;  // what the launcher does to us from now on is no news
    say("trainer: rank {}: {}\n", rank, message);
  };
  listener.on_loss.end = [] { std::_Exit(exit_after_loss()); };
  listener.say = [](const std::string& line) { say("{}\n", line); };
  listener.say_once = [](const std::string& line) {
    if (speaks()) say("{}\n", line);
  };
  return listener;
}

void tokenize(const LoadedJob& loaded, const CompiledJob* compiled) {
  data::Tokenizing tokenizing;
  tokenizing.threads = threads_per_rank(1);
  tokenizing.progress = progress_line("tokenizing");
  tokenizing.say = [](const std::string& line) {
    if (speaks()) say("{}\n", line);
  };
  tokenize_inputs(loaded, compiled, std::move(tokenizing));
}

}  // namespace

OwnRank join_ranks(const JobArguments& arguments, Reads reads) {
  const std::optional<Launcher> launcher = detect_launcher(process_environment());
  is_first = !launcher || launcher->rank == 0;
  LoadedJob loaded = arguments.load_to_run(launcher ? launcher->world_size : 0);
  for (const Diagnostic& warning : loaded.warnings)
    if (speaks()) say("{}\n", warning.str());
  if (launcher && launcher->world_size > 1 && reads == Reads::data) tokenize(loaded, nullptr);
  ConnectedRank rank = connect_rank(loaded, launcher, listener(launcher ? launcher->rank : 0));
  return {std::move(rank), std::move(loaded)};
}

void tokenize_alone(const OwnRank& own, const CompiledJob& compiled) {
  if (own.process == nullptr) tokenize(own.loaded, &compiled);
}

std::optional<int> run_as_ranks(const JobArguments& arguments, Reads reads) {
  const EnvironmentMap environment = process_environment();
  const std::optional<Launcher> launcher = detect_launcher(environment);
  if (launcher) return std::nullopt;
  const LoadedJob loaded = arguments.load_to_run();
  if (backend_of(loaded, launcher) != Backend::nccl) return std::nullopt;
  const NodePlace node = node_of_job(environment, static_cast<int>(loaded.job.cluster.nodes));
  RanksToStart start = gpu_ranks_of(loaded.job, node, environment, num_gpus(), shares_gpus());
  start.command = own_command();
  start.orderly = {kDone, kStopped};
  start.consequence = kConsequence;
  start.say = [](const std::string& line) { say("trainer: {}\n", line); };
  if (reads == Reads::data) tokenize(loaded, nullptr);
  say("starting {} ranks, a process for each GPU{}\n", start.ranks,
      node.nodes == 1 ? "" : fmt::format(", on node {} of {} ({})", node.node, node.nodes, node.source));
  const int code = start_ranks(start).code;
  return code == kConsequence ? static_cast<int>(kInputOutput) : code;
}

bool speaks() { return is_first && !lost_another; }

void leave_stdout_to_the_first() {
  try {
    const std::optional<Launcher> launcher = detect_launcher(process_environment());
    if (launcher && launcher->rank > 0 && std::freopen("/dev/null", "w", stdout) == nullptr)
      throw IoError("cannot open /dev/null");
  } catch (const UsageError&) {
    // Commands that need to know who started them say what is wrong; the others need not.
  }
}

}  // namespace trainer::tools
