// The waits of a program, played.
#include "engine/plan/verify/stream_clocks.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "engine/core/index.h"

namespace trainer {

// What a stream knows of another has to move on by one round, up to this pass or the one before. Where it does not, it
// may stay, or be further behind, and has to do so at the end of each of the round's instructions too, with all that
// stays before all that moves.
std::optional<StreamClock> stays_behind(const Loop& loop, const ActiveStreams& active, const StreamClocks& found,
                                        const StreamClocks& now, const std::vector<StreamClock>& ended) {
  StreamClock stays;
  const auto follows = [&](std::size_t s, std::size_t t) {
    return s == t || !active[s] || !active[t] ||
           (now[s][t] == found[s][t] + loop.size() && now[s][t] >= loop.first - loop.size());
  };
  bool all = true;
  for (std::size_t s = 0; s < kNumStreams; ++s)
    for (std::size_t t = 0; t < kNumStreams; ++t) all = all && follows(s, t);
  if (all) return stays;
  StreamClock moves;
  moves.at.fill(std::numeric_limits<std::int32_t>::max());
  const auto move_on = [&](const StreamClock& before, const StreamClock& after) {
    for (std::size_t t = 0; t < kNumStreams; ++t) {
      if (!active[t]) continue;
      if (after[t] == before[t])
        stays[t] = std::max(stays[t], after[t]);
      else if (after[t] == before[t] + loop.size())
        moves[t] = std::min(moves[t], before[t]);
      else
        return false;
    }
    return true;
  };
  for (std::size_t s = 0; s < kNumStreams; ++s)
    if (active[s] && !move_on(found[s], now[s])) return {};
  for (std::int32_t i = loop.first; i < loop.last; ++i)
    if (!move_on(ended[at(i - loop.size())], ended[at(i)])) return {};
  for (std::size_t t = 0; t < kNumStreams; ++t)
    if (active[t] && stays[t] >= moves[t]) return {};
  return stays;
}

bool streams_settle(const Program& program) {
  if (program.loops.empty()) return true;
  StreamClocks clocks, found;
  std::vector<StreamClock> ended;
  ended.reserve(program.instructions.size());
  const auto meet = [&](const Loop& loop, std::int32_t i) {
    if (i == loop.first) found = clocks;
    if (i != loop.last) return true;
    ActiveStreams active{};
    for (std::int32_t of = loop.first; of < loop.last; ++of)
      active[static_cast<std::size_t>(program.instructions[at(of)].stream)] = true;
    return stays_behind(loop, active, found, clocks, ended).has_value();
  };
  const auto size = static_cast<std::int32_t>(program.instructions.size());
  for (std::int32_t i = 0; i <= size; ++i) {
    for (const Loop& loop : program.loops)
      if (!meet(loop, i)) return false;
    if (i == size) break;
    const Issued& issued = program.instructions[at(i)];
    const auto mine = static_cast<std::size_t>(issued.stream);
    StreamClock& clock = clocks[mine];
    for (const std::int32_t after : issued.after)
      for (std::size_t s = 0; after >= 0 && s < kNumStreams; ++s) clock[s] = std::max(clock[s], ended[at(after)][s]);
    clock[mine] = i;
    ended.push_back(clock);
  }
  return true;
}

}  // namespace trainer
