// /proc/self/cgroup says which groups, by path from the root of their hierarchy; /proc/self/mountinfo where those are
// to be seen. A container may see only a part of a hierarchy: its mount then begins at a group below the root.
#include "engine/core/control_group.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace trainer {
namespace {

namespace fs = std::filesystem;

struct Mount {
  std::string root, point, type, options;
};

std::vector<Mount> mounts_of(const std::string& proc) {
  std::vector<Mount> mounts;
  std::ifstream file(proc + "/mountinfo");
  for (std::string line; std::getline(file, line);) {
    Mount mount;
    std::string skipped;
    std::istringstream words(line);
    words >> skipped >> skipped >> skipped >> mount.root >> mount.point;
    while (words >> skipped && skipped != "-") {
    }
    words >> mount.type >> skipped >> mount.options;
    if (mount.type == "cgroup" || mount.type == "cgroup2") mounts.push_back(mount);
  }
  return mounts;
}

bool lists(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// The path of this process's group in a hierarchy.
std::optional<fs::path> group_in(const Mount& mount, const std::string& controller, const std::string& proc) {
  if (mount.type == "cgroup" && !lists(mount.options, controller)) return std::nullopt;
  std::ifstream file(proc + "/cgroup");
  for (std::string line; std::getline(file, line);) {  // number:controllers:path
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (mount.type == "cgroup2" ? controllers.empty() : lists(controllers, controller)) return line.substr(second + 1);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> control_group_limit(const std::string& controller, const std::string& v1,
                                                const std::string& v2, const std::string& proc) {
  std::optional<std::int64_t> lowest;
  for (const Mount& mount : mounts_of(proc)) {
    const std::optional<fs::path> group = group_in(mount, controller, proc);
    if (!group) continue;
    fs::path below = group->lexically_relative(mount.root);
    if (below.empty() || *below.begin() == "..") below = ".";  // not to be seen: the mount's own group is the nearest
    const fs::path name = mount.type == "cgroup2" ? v2 : v1;
    for (fs::path at = (fs::path(mount.point) / below).lexically_normal();; at = at.parent_path()) {
      std::ifstream file(at / name);
      std::int64_t limit = 0;  // "max" is no number
      if (file >> limit) lowest = std::min(limit, lowest.value_or(limit));
      if (at == fs::path(mount.point) || at == at.root_path() || at.empty()) break;
    }
  }
  return lowest;
}

}  // namespace trainer
