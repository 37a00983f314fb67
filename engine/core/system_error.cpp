// Limits by getrlimit and the control groups.
#include "engine/core/system_error.h"

#include <sys/resource.h>

#include <cerrno>
#include <latch>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/core/control_group.h"
#include "engine/core/error.h"

namespace trainer {
namespace {

std::optional<rlim_t> limit_of(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

// "; the limit of open files is 4 (ulimit -n)", or nothing where there is no limit. `unit`: what ulimit counts in.
std::string limit_text(const std::string& of_what, __rlimit_resource resource, const std::string& option,
                       rlim_t unit = 1) {
  const std::optional<rlim_t> limit = limit_of(resource);
  if (!limit) return "";
  return "; the limit of " + of_what + " is " + std::to_string(*limit) + (unit == 1 ? "" : " bytes") + " (ulimit " +
         option + (unit == 1 ? "" : " " + std::to_string(*limit / unit)) + ")";
}

}  // namespace

std::string system_text(int error) {
  const std::string message = std::generic_category().message(error);
  switch (error) {
    case EMFILE:
      return message + limit_text("open files of a process", RLIMIT_NOFILE, "-n");
    case ENFILE:
      return message + "; the limit of open files of the whole system is reached (sysctl fs.file-max)";
    case EFBIG:
      return message + limit_text("a file's size", RLIMIT_FSIZE, "-f", 1024);
    case EDQUOT:
      return message + "; the disk quota of this user or project is used up";
    case ENOMEM:
      return message + limit_text("address space of a process", RLIMIT_AS, "-v", 1024);
    default:
      return message;
  }
}

std::string threads_refused() {
  std::string text = "the system starts no more threads" +
                     limit_text("processes and threads of this user, all its programs together", RLIMIT_NPROC, "-u");
  if (const std::optional<std::int64_t> most = control_group_limit("pids", "pids.max", "pids.max"))
    text += "; the limit of this container or control group is " + std::to_string(*most) + " (pids.max)";
  return text + limit_text("address space of a process", RLIMIT_AS, "-v", 1024) +
         "; TRAINER_THREADS and cluster.devices_per_node say how many a job starts";
}

std::string memory_refused() {
  return "the system gave no more memory" + limit_text("address space of a process", RLIMIT_AS, "-v", 1024) +
         limit_text("data of a process", RLIMIT_DATA, "-d", 1024);
}

void require_threads(int count) {
  std::latch ended(1);
  std::vector<std::jthread> threads;
  try {
    for (int i = 0; i < count; ++i) threads.emplace_back([&] { ended.wait(); });
  } catch (const std::system_error&) {
    ended.count_down();
    throw IoError("starting " + std::to_string(count) + " threads: " + threads_refused());
  }
  ended.count_down();
}

}  // namespace trainer
