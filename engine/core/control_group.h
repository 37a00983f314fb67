// Limits of the control groups (containers, systemd units, Slurm jobs) that this process is in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trainer {

/// The lowest limit on the way from this process's group to the root, as far as it can be seen from here; nothing where
/// there is none. `controller` ("memory") has its limit in the file `v1` of version 1's hierarchies, in `v2` of version
/// 2's. `proc`: /proc/self, or what stands for it in a test.
std::optional<std::int64_t> control_group_limit(const std::string& controller, const std::string& v1,
                                                const std::string& v2, const std::string& proc = "/proc/self");

}  // namespace trainer
