// StreamSchedule: what a device with streams and events does to keep a program's order. The plan says after which
// instructions of other streams each one starts; here that becomes events to record and events to wait for, each only
// where no other wait already implies it, and the fork and join that make all streams one piece of work: a capture
// begins and ends on one of them. Pure: no device is asked, so the schedule of any plan can be looked at anywhere.
//
// Of each loop it holds the first passes, until a pass waits for what the one before it waited for; all later ones are
// as that one. An instruction in a loop has two events, which its passes take in turns: a pass waits for instructions
// of its own and of the pass before, and never for one of an earlier pass that has the same event.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/run/places.h"

namespace trainer {

struct StreamSchedule {
  struct Wait {
    std::int32_t event = 0;  ///< the first of its instruction, or where `back` is -1 the one that is waited for
    std::int32_t back = -1;  ///< in the same loop: 0 that of this pass, 1 of the pass before; -1: outside of it
  };

  /// The stream where the program begins and ends: compute where that is used, else the first that is.
  Stream origin = Stream::compute;
  std::array<bool, kNumStreams> used{};
  /// Streams that wait for the origin's beginning: those that wait for nothing else before their first instruction.
  std::array<bool, kNumStreams> forked{};
  std::vector<std::int32_t> joined;    ///< events that the origin waits for at the end
  std::vector<std::int32_t> recorded;  ///< instructions whose end is recorded, ascending
  std::int32_t num_events = 0;

  /// What an instruction waits for in a pass, and the event of a wait there.
  std::span<const Wait> waits(const Place& place) const {
    const std::size_t at = listed(place);
    return std::span(waits_).subspan(first_wait_[at], first_wait_[at + 1] - first_wait_[at]);
  }
  static std::int32_t event_of(const Wait& wait, std::int32_t pass) {
    return wait.event + (wait.back < 0 ? 0 : (pass - wait.back) % 2);
  }
  /// The event to record after an instruction in a pass; -1: none.
  std::int32_t record(const Place& place) const {
    const std::int32_t event = events_[static_cast<std::size_t>(place.instruction)];
    return event >= 0 && in_loop(place.instruction) ? event + place.pass % 2 : event;
  }
  /// The events of an instruction that is recorded, whatever the pass.
  std::pair<std::int32_t, std::int32_t> events_of(std::int32_t instruction) const {
    const std::int32_t event = events_[static_cast<std::size_t>(instruction)];
    return {event, in_loop(instruction) ? event + 1 : event};
  }

  bool forks() const;
  /// Waits that are held, joins and forks.
  std::int64_t num_waits() const;

 private:
  friend class StreamScheduler;
  /// The loop of an instruction, with the passes that are held; null: none.
  const Loop* loop_at(std::int32_t instruction) const {
    const auto loop = std::ranges::find_if(held_, [&](const Loop& one) { return one.holds(instruction); });
    return loop == held_.end() ? nullptr : &*loop;
  }
  bool in_loop(std::int32_t instruction) const { return loop_at(instruction) != nullptr; }
  std::size_t listed(const Place& place) const {
    const Loop* const loop = loop_at(place.instruction);
    const std::int32_t pass = loop == nullptr ? 0 : std::min(place.pass, loop->times - 1);
    return static_cast<std::size_t>(number_of(held_, place.instruction, pass));
  }

  std::vector<Loop> held_;  // the loops, with the passes that are held
  std::vector<Wait> waits_;
  std::vector<std::uint32_t> first_wait_;  // of each instruction in each pass that is held; one more
  std::vector<std::int32_t> events_;       // of each instruction of the list; -1: none
};

/// The schedule of a program. REQUIRES: waits point back in issue order, those in a loop at most a pass (verify.h).
StreamSchedule schedule_streams(const Program& program);

}  // namespace trainer
