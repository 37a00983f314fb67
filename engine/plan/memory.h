// Memory: gives every buffer its place in the rank's one allocation, and says what is there at the peak.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer {

/// Sets every offset, persistent_bytes and total_bytes. Persistent buffers lie first, in order. A program's other
/// buffers share the memory behind them: two whose lifetimes (first to last access, in issue order) overlap never
/// overlap in memory.
void plan_memory(Role& role);

/// What a role needs, and of what it consists at the moment when most is alive.
struct MemoryReport {
  std::int64_t peak_bytes = 0;                             ///< the allocation
  std::array<std::int64_t, kNumCategories> by_category{};  ///< at the peak; adds up to peak_bytes: alignment and gaps
                                                           ///< between buffers count as workspace
  std::optional<ProgramKind> program;                      ///< where the peak is
  std::int32_t instruction = -1;
  std::string peak_at;  ///< that instruction, for people
};
MemoryReport report_memory(const Role& role);

/// From its first access to its last; what communication touches last is held on, until the next of its kind. -1: not
/// in the program.
struct Lifetime {
  std::int32_t first = -1;
  std::int32_t last = -1;
};
/// Of every buffer in a program, persistent ones too, by issue index.
std::vector<Lifetime> lifetimes(const Role& role, const Program& program);
/// The same in several where the buffer is a ring of one part: between its last reader and the next writer it holds
/// nothing. What a loop touches and something outside it too lives through the loop.
std::vector<std::vector<Lifetime>> live_intervals(const Role& role, const Program& program);

/// Live bytes after each instruction of a program, persistent ones included: the curve over a step.
std::vector<std::int64_t> live_bytes(const Role& role, const Program& program);

}  // namespace trainer
