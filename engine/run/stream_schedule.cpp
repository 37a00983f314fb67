// Vector clocks: of each stream, up to which instruction every stream is known to have ended when its next one starts.
// A wait for what is known already is left out; of the waits of one instruction, one that another implies is too. Waits
// only point back, so what is left is the one smallest set.
#include "engine/run/stream_schedule.h"

#include <algorithm>
#include <iterator>

#include "engine/core/check.h"

namespace trainer {
namespace {

void raise(StreamClock& clock, const StreamClock& other) {
  for (std::size_t s = 0; s < kNumStreams; ++s) clock[s] = std::max(clock[s], other[s]);
}

class Scheduling {
 public:
  explicit Scheduling(const Program& program)
      : program_(program), ended_(program.instructions.size()), waited_for_(program.instructions.size()) {}

  StreamSchedule run() {
    for (const Issued& issued : program_.instructions) schedule_.used[static_cast<std::size_t>(issued.stream)] = true;
    const auto first = std::find(schedule_.used.begin(), schedule_.used.end(), true);
    if (first != schedule_.used.end()) schedule_.origin = static_cast<Stream>(first - schedule_.used.begin());
    for (std::size_t i = 0; i < ended_.size(); ++i) order(i);
    join();
    number_events();
    return std::move(schedule_);
  }

 private:
  void order(std::size_t i) {
    const Issued& issued = program_.instructions[i];
    const auto mine = static_cast<std::size_t>(issued.stream);
    StreamClock& known = known_[mine];
    const std::vector<std::int32_t> waits = needed(known, issued.after, mine, i);
    const bool first = known[mine] < 0;
    if (first && waits.empty() && issued.stream != schedule_.origin) schedule_.forked[mine] = true;
    for (std::int32_t other : waits) {
      schedule_.waits.push_back({static_cast<std::int32_t>(i), other});
      waited_for_[static_cast<std::size_t>(other)] = true;
      raise(known, ended_[static_cast<std::size_t>(other)]);
    }
    known[mine] = static_cast<std::int32_t>(i);
    ended_[i] = known;
  }

  // The instructions to wait for, such that what is known comes up to `after` on every stream but `mine`.
  std::vector<std::int32_t> needed(const StreamClock& known, const StreamClock& after, std::size_t mine,
                                   std::size_t before) const {
    std::vector<std::int32_t> waits;
    for (std::size_t s = 0; s < kNumStreams; ++s) {
      if (s == mine || after[s] <= known[s]) continue;
      CHECK(static_cast<std::size_t>(after[s]) < before &&
                static_cast<std::size_t>(program_.instructions[static_cast<std::size_t>(after[s])].stream) == s,
            "a wait is for an instruction before it, on the stream that it names");
      waits.push_back(after[s]);
    }
    const auto implied = [&](std::int32_t one) {
      const auto stream = static_cast<std::size_t>(program_.instructions[static_cast<std::size_t>(one)].stream);
      return std::any_of(waits.begin(), waits.end(), [&](std::int32_t other) {
        return other != one && ended_[static_cast<std::size_t>(other)][stream] >= one;
      });
    };
    std::vector<std::int32_t> kept;
    std::copy_if(waits.begin(), waits.end(), std::back_inserter(kept), [&](std::int32_t one) { return !implied(one); });
    return kept;
  }

  void join() {
    const auto origin = static_cast<std::size_t>(schedule_.origin);
    StreamClock all;
    for (std::size_t s = 0; s < kNumStreams; ++s) all[s] = known_[s][s];
    schedule_.joined = needed(known_[origin], all, origin, ended_.size());
    for (std::int32_t one : schedule_.joined) waited_for_[static_cast<std::size_t>(one)] = true;
  }

  // Until here waits name instructions.
  void number_events() {
    std::vector<std::int32_t> event(ended_.size(), -1);
    for (std::size_t i = 0; i < ended_.size(); ++i) {
      if (!waited_for_[i]) continue;
      event[i] = schedule_.num_events();
      schedule_.recorded.push_back(static_cast<std::int32_t>(i));
    }
    for (StreamSchedule::Wait& wait : schedule_.waits) wait.event = event[static_cast<std::size_t>(wait.event)];
    for (std::int32_t& one : schedule_.joined) one = event[static_cast<std::size_t>(one)];
  }

  const Program& program_;
  StreamSchedule schedule_;
  std::array<StreamClock, kNumStreams> known_;
  std::vector<StreamClock> ended_;  // what is known once an instruction has ended
  std::vector<bool> waited_for_;
};

}  // namespace

bool StreamSchedule::forks() const {
  return std::any_of(forked.begin(), forked.end(), [](bool one) { return one; });
}

StreamSchedule schedule_streams(const Program& program) { return Scheduling(program).run(); }

std::span<const StreamSchedule::Wait> ScheduleCursor::waits(std::int32_t index) {
  const std::size_t first = wait_;
  while (wait_ < schedule_.waits.size() && schedule_.waits[wait_].instruction == index) ++wait_;
  return std::span(schedule_.waits).subspan(first, wait_ - first);
}

std::int32_t ScheduleCursor::record(std::int32_t index) {
  if (event_ >= schedule_.recorded.size() || schedule_.recorded[event_] != index) return -1;
  return static_cast<std::int32_t>(event_++);
}

}  // namespace trainer
