// Which rank of a job this process is, if its ranks are processes: who started it, and its connection to the others.
// Every process says what goes wrong; what is the same on all is said by the first alone.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/train/connect_rank.h"
#include "tools/command.h"

namespace trainer::tools {

struct OwnRank : ConnectedRank {
  LoadedJob loaded;
};

/// What a command reads of the job. Where it reads the data, text is tokenized before the processes meet, so that none
/// waits for another one that does.
enum class Reads : std::uint8_t { weights, data };

/// Finds the launcher, loads the job for it, and connects the processes if there are several. Throws UsageError where
/// they do not fit.
OwnRank join_ranks(const JobArguments& arguments, Reads reads);

/// Where the job's ranks are processes for GPUs that no launcher started: starts this command once for each GPU of the
/// node, watches over them to their end, and returns the exit code. Nothing where this process is itself to do the
/// work: join_ranks. Throws UsageError as that does.
std::optional<int> run_as_ranks(const JobArguments& arguments, Reads reads);

/// Of a process that is all ranks: tokenizes text into the cache, with progress on a terminal.
void tokenize_alone(const OwnRank& own, const CompiledJob& compiled);

/// Whether this process is the first, and no other was lost. Any thread, and signal handlers, may ask.
bool speaks();

/// For main, whatever the command: of processes that a launcher started, only the first keeps its stdout.
void leave_stdout_to_the_first();

}  // namespace trainer::tools
