// One walk over a stage's actions keeps each moment that none before exceeds, and drops those that it exceeds.
#include "engine/cost/moments.h"

#include <algorithm>

namespace trainer::cost {
namespace {

using Kind = Action::Kind;

// What a pass hands from its input part to its weight part may weigh less than what it frees, so there is no order
// between moments with different numbers of those.
bool exceeds(const Moment& a, const Moment& b) {
  if (a.chunk != b.chunk) return false;
  for (std::size_t i = a.held.size(); i-- > 0;)
    if (a.held[i].alive < b.held[i].alive || a.held[i].handed != b.held[i].handed) return false;
  return true;
}

std::vector<Moment> fullest_moments(const std::vector<Action>& actions, const std::vector<int>& chunks) {
  std::vector<Moment> fullest;
  Moment now;
  for (const int chunk : chunks) now.held.push_back({chunk});
  for (const Action& action : actions) {
    Moment::Held& held = *std::ranges::find(now.held, action.chunk, &Moment::Held::chunk);
    now.chunk = action.chunk;
    held.alive += action.kind == Kind::forward;
    // What a stage repeats it repeats soon: the newest first.
    if (std::none_of(fullest.rbegin(), fullest.rend(), [&](const Moment& one) { return exceeds(one, now); })) {
      std::erase_if(fullest, [&](const Moment& one) { return exceeds(now, one); });
      fullest.push_back(now);
    }
    held.alive -= action.kind == Kind::backward || action.kind == Kind::backward_weight;
    held.handed += (action.kind == Kind::backward_input) - (action.kind == Kind::backward_weight);
  }
  return fullest;
}

}  // namespace

std::vector<std::vector<Moment>> fullest_moments(const Schedule& schedule) {
  std::vector<std::vector<int>> chunks(schedule.stages.size());
  for (std::size_t chunk = 0; chunk < schedule.stage_of_chunk.size(); ++chunk)
    chunks[static_cast<std::size_t>(schedule.stage_of_chunk[chunk])].push_back(static_cast<int>(chunk));
  std::vector<std::vector<Moment>> result;
  for (std::size_t stage = 0; stage < chunks.size(); ++stage)
    result.push_back(fullest_moments(schedule.stages[stage], chunks[stage]));
  return result;
}

std::int64_t peak_bytes(const std::vector<Moment>& moments, const std::vector<Piece>& chunks) {
  std::int64_t most = 0;
  for (const Moment& moment : moments) {
    std::int64_t bytes = chunks[static_cast<std::size_t>(moment.chunk)].transient_bytes;
    for (const auto& [chunk, alive, handed] : moment.held) {
      const Piece& piece = chunks[static_cast<std::size_t>(chunk)];
      bytes += alive * piece.saved_bytes + handed * (piece.handed_bytes - piece.freed_bytes);
    }
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace trainer::cost
