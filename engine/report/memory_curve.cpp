// How the curve is made: changes at each instruction are added up; each point is the fullest moment of its stretch.
#include "engine/report/memory_curve.h"

#include <algorithm>

#include "engine/core/check.h"
#include "engine/plan/memory.h"

namespace trainer::report {
namespace {

using Bytes = std::array<std::int64_t, kNumCategories>;

std::int64_t sum(const Bytes& bytes) {
  std::int64_t all = 0;
  for (std::int64_t one : bytes) all += one;
  return all;
}

// What instruction i begins to hold, less what i − 1 was the last to hold.
std::vector<Bytes> changes(const Role& role, const Program& program) {
  const std::vector<Lifetime> lives = lifetimes(role, program);
  std::vector<Bytes> change(program.instructions.size() + 1, Bytes{});
  for (std::size_t id = 0; id < role.buffers.size(); ++id) {
    const Buffer& buffer = role.buffers[id];
    const auto category = static_cast<std::size_t>(buffer.category);
    if (buffer.space != Space::device) continue;
    if (buffer.program < 0) {
      change.front()[category] += buffer.bytes;
    } else if (lives[id].first >= 0) {
      change[static_cast<std::size_t>(lives[id].first)][category] += buffer.bytes;
      change[static_cast<std::size_t>(lives[id].last) + 1][category] -= buffer.bytes;
    }
  }
  return change;
}

}  // namespace

MemoryCurve memory_curve(const Role& role, const Program& program, std::size_t most_points) {
  CHECK(most_points > 0, "a curve has points");
  const std::vector<Bytes> change = changes(role, program);
  const std::size_t count = program.instructions.size(),
                    each = std::max<std::size_t>(1, (count + most_points - 1) / most_points);
  MemoryCurve curve;
  Bytes live{};
  for (std::size_t begin = 0; begin < count; begin += each) {
    Bytes fullest{};
    for (std::size_t i = begin; i < std::min(count, begin + each); ++i) {
      for (std::size_t category = 0; category < live.size(); ++category) live[category] += change[i][category];
      if (sum(live) > sum(fullest)) fullest = live;
      if (sum(live) > curve.peak_bytes) curve.peak_bytes = sum(live), curve.peak = static_cast<std::int32_t>(i);
    }
    curve.at.push_back(static_cast<std::int32_t>(begin));
    for (std::size_t category = 0; category < live.size(); ++category)
      curve.live[category].push_back(fullest[category]);
  }
  return curve;
}

}  // namespace trainer::report
