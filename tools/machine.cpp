// Memory by /proc and the control groups; configs by the place of the executable.
#include "tools/machine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

namespace trainer::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

std::optional<std::int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;  // no such file, or "max"
}

// Version 2 has a limit at every level of the path; version 1 one file of the memory controller.
std::int64_t control_group_limit() {
  std::int64_t limit = INT64_MAX;
  const auto take = [&](const fs::path& path) {
    if (const auto number = number_in(path)) limit = std::min(limit, *number);
  };
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::")) continue;
    for (fs::path group = fs::path("/sys/fs/cgroup") / fs::path(line.substr(3)).relative_path(); group != "/sys/fs";
         group = group.parent_path())
      take(group / "memory.max");
  }
  take("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  return limit;
}

}  // namespace

std::string configs_dir() {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& candidate : {folder / "configs", folder / "../configs", folder / "../share/trainer/configs"})
    if (fs::is_directory(candidate / "models", error)) return fs::weakly_canonical(candidate, error);
  return "";
}

std::string default_hardware_file() {
  const auto folder = [](const char* variable) {
    const char* const value = std::getenv(variable);
    return value == nullptr ? std::string() : std::string(value);
  };
  const std::string config = folder("XDG_CONFIG_HOME");
  return (config.empty() ? fs::path(folder("HOME")) / ".config" : fs::path(config)) / "trainer" / "hardware.yaml";
}

std::int64_t memory_bytes() {
  const std::int64_t physical = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  return std::min(physical, control_group_limit());
}

std::int64_t reserved_bytes() { return std::min(512 * kMiB, memory_bytes() / 4); }

Machine::Machine(int ranks, int threads) : context_{kernels::cpu::detect_isa(), threads > 0 ? threads : threads_per_rank(ranks)}, target_(context_) {}

}  // namespace trainer::tools
