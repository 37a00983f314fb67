// StreamSchedule: what a device with streams and events does to keep a program's order. The plan says after which
// instructions of other streams each one starts; here that becomes events to record and events to wait for, each only
// where no other wait already implies it, and the fork and join that make all streams one piece of work: a capture
// begins and ends on one of them. Pure: no device is asked, so the schedule of any plan can be looked at anywhere.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer {

/// Events are numbered from 0 in the order in which they are recorded, each once a run, after the instruction
/// `StreamSchedule::recorded[event]`.
struct StreamSchedule {
  struct Wait {
    std::int32_t instruction = 0;  ///< before which its stream waits
    std::int32_t event = 0;
    friend bool operator==(const Wait&, const Wait&) = default;
  };

  /// The stream where the program begins and ends: compute where that is used, else the first that is.
  Stream origin = Stream::compute;
  std::array<bool, kNumStreams> used{};
  /// Streams that wait for the origin's beginning: those that wait for nothing else before their first instruction.
  std::array<bool, kNumStreams> forked{};
  std::vector<Wait> waits;             ///< by instruction, ascending
  std::vector<std::int32_t> recorded;  ///< of each event the instruction that it follows, ascending
  std::vector<std::int32_t> joined;    ///< events that the origin waits for at the end

  std::int32_t num_events() const { return static_cast<std::int32_t>(recorded.size()); }
  bool forks() const;
};

/// The schedule of a program. REQUIRES: waits point back in issue order (verify.h).
StreamSchedule schedule_streams(const Program& program);

/// Goes over a schedule in issue order, as whoever carries it out does.
class ScheduleCursor {
 public:
  explicit ScheduleCursor(const StreamSchedule& schedule) : schedule_(schedule) {}
  /// What instruction `index` waits for. REQUIRES: called once for every instruction, ascending.
  std::span<const StreamSchedule::Wait> waits(std::int32_t index);
  /// The event to record after it; -1: none. The same.
  std::int32_t record(std::int32_t index);

 private:
  const StreamSchedule& schedule_;
  std::size_t wait_ = 0, event_ = 0;
};

}  // namespace trainer
