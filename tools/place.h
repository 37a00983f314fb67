// Where this process stands in a job whose ranks may be processes: who started it, what connects it to the others, and its share of the
// machine. Every process says what goes wrong; what is the same on all is said by the first alone.
#pragma once

#include <memory>
#include <optional>

#include "engine/comm/communicator.h"
#include "tools/command.h"

namespace trainer::tools {

struct Place {
  LoadedJob loaded;
  std::unique_ptr<Communicator> process;  ///< this process's rank; null: ranks are threads of this process
  int threads = 1;                        ///< of one rank, the same on all
};

/// Finds the launcher, loads the job for it, and connects the processes if there are several. Throws UsageError where they do not fit.
Place take_place(const JobArguments& arguments);

/// Where the job's ranks are processes for GPUs that no launcher started: starts this command once for each GPU of the node, watches over them to
/// their end, and returns the exit code. Nothing where this process is itself to do the work: take_place. Throws UsageError as that does.
std::optional<int> run_as_ranks(const JobArguments& arguments);

/// Whether this process is the first, and no other was lost. Any thread, and signal handlers, may ask.
bool speaks();

/// Throws UsageError where another process has another plan: job files, overrides or machines differ, and they would meet in the wrong
/// collectives. Every process calls it.
void check_same_plan(const Place& place, const CompiledJob& compiled);

/// For main, whatever the command: of processes that a launcher started, only the first keeps its stdout.
void leave_stdout_to_the_first();

}  // namespace trainer::tools
