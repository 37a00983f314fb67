// Memory: gives every buffer its place in the rank's one allocation, and says what is there at the peak.
#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/placing.h"
#include "engine/plan/plan.h"

namespace trainer {

/// Sets every offset and the bytes of each space. Persistent buffers lie first, in order. A program's other
/// buffers share the memory behind them: two whose lifetimes (first to last access, in issue order) overlap never
/// overlap in memory. Where that can keep the role within `limit`, more time is spent on it. Care::little takes a
/// fraction of the time for long programs, and some percent more memory; false: it made no difference.
enum class Care : std::uint8_t { little, full };
bool plan_memory(Role& role, std::int64_t limit = std::numeric_limits<std::int64_t>::max(), Care care = Care::full);

/// The most that is alive at once in a program, persistent buffers included: no planning of memory needs less.
std::int64_t least_bytes(const Role& role);

/// What a role needs of the device, and of what it consists at the moment when most is alive.
struct MemoryReport {
  std::int64_t peak_bytes = 0;                             ///< the allocation
  std::array<std::int64_t, kNumCategories> by_category{};  ///< at the peak; adds up to peak_bytes: alignment and gaps
                                                           ///< between buffers count as workspace
  std::vector<std::int64_t> by_program;                    ///< of each of the role's: the most that is alive in it
  std::optional<ProgramKind> program;                      ///< where the peak is
  std::int32_t instruction = -1;
  std::string peak_at;  ///< that instruction, for people
};
MemoryReport report_memory(const Role& role);
/// Of each role.
std::vector<MemoryReport> report_memory(const Plan& plan);

/// The allocation in a space of the rank that has most there.
std::int64_t most_bytes(const Plan& plan, Space space);

/// When every buffer is alive in a program, persistent ones too: from its first access to its last. What communication
/// touches last is held on, until the next of its kind. Several lifetimes where the buffer is a ring that does not
/// turn: between its last reader and the next writer it holds nothing. What a loop touches and something outside it too
/// lives through the loop.
class Lives {
 public:
  /// Those of buffer i are all[begins[i]] to all[begins[i + 1]], in order.
  Lives(std::vector<std::size_t> begins, std::vector<Lifetime> all)
      : begins_(std::move(begins)), all_(std::move(all)) {}

  /// Empty: not in the program.
  std::span<const Lifetime> of(BufferId id) const {
    const auto i = static_cast<std::size_t>(id);
    return {all_.data() + begins_[i], begins_[i + 1] - begins_[i]};
  }

 private:
  std::vector<std::size_t> begins_;
  std::vector<Lifetime> all_;
};
Lives live_intervals(const Role& role, const Program& program);
/// From the first to the last of these; -1: not in the program.
std::vector<Lifetime> lifetimes(const Role& role, const Program& program);

/// Live bytes of the device after each instruction of a program, persistent ones included: the curve over a step.
std::vector<std::int64_t> live_bytes(const Role& role, const Program& program);

}  // namespace trainer
