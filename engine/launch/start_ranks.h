// Ranks as processes that this one starts and watches: one for each GPU of a machine, where no launcher did it. The
// command is any, so this is tested without a GPU.
//
// Whatever happens, none of them outlives this process, and none is left unreaped: the kernel kills them when their
// parent ends (PR_SET_PDEATHSIG). Their standard streams are this process's own.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trainer {

struct RanksToStart {
  std::vector<std::string> command;  ///< of each rank; the first word is the program, by path
  int ranks = 1;
  int first_rank = 0;                              ///< RANK of the first of them; their LOCAL_RANK counts from 0
  std::map<std::string, std::string> environment;  ///< beside this process's own
  std::function<std::map<std::string, std::string>(int)> more;  ///< for the rank of that LOCAL_RANK; null: nothing
  std::vector<int> orderly{0};                                  ///< exit codes with which a rank ends well
  int consequence = -1;                                         ///< exit code of a rank that ended because another did
  std::chrono::milliseconds grace{10000};       ///< from the first that ends badly to SIGTERM for the others
  std::chrono::milliseconds kill{5000};         ///< from there to SIGKILL
  std::function<void(const std::string&)> say;  ///< gets a line for people on each rank that ended badly; null: nothing
};

/// How a rank ended.
struct RankEnd {
  int rank = -1;  ///< its RANK
  int code = 0;   ///< exit code, or 128 + the signal that ended it
};

/// Starts them, passes SIGTERM, SIGINT, SIGUSR1 and SIGHUP on, and returns when all have ended: what the first rank
/// ended with that failed by itself (not with `consequence`, and not by this process's signals); if none did, the first
/// end that was not 0; else 0. Once one has ended badly the others have `grace` to say why they end. Blocks those
/// signals and SIGCHLD meanwhile. REQUIRES: one thread, which calls it. Throws IoError.
RankEnd start_ranks(const RanksToStart& ranks);

/// What makes processes on this machine ranks of one job: MASTER_ADDR, a MASTER_PORT that is free now, TRAINER_TOKEN,
/// WORLD_SIZE. start_ranks adds RANK and LOCAL_RANK.
std::map<std::string, std::string> meeting_on_this_machine(int ranks);

/// The command line of this process, to start it again.
std::vector<std::string> own_command();

}  // namespace trainer
