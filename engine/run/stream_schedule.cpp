// Vector clocks: of each stream, up to which instruction every stream is known to have ended when its next one starts.
// A wait for what is known already is left out; of the waits of one instruction, one that another implies is too. Waits
// only point back, so what is left is the one smallest set.
//
// Clocks count instructions of the program written out. Over a loop that goes on until a pass has moved every clock by
// a pass, or left it where it was: from there on each pass is like the one before, and what is behind that loop is
// scheduled as if that had been its last.
#include "engine/run/stream_schedule.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

#include "engine/core/check.h"

namespace trainer {
namespace {

void raise(StreamClock& clock, const StreamClock& other) {
  for (std::size_t s = 0; s < kNumStreams; ++s) clock[s] = std::max(clock[s], other[s]);
}

}  // namespace

class StreamScheduler {
 public:
  explicit StreamScheduler(const Program& program) : program_(program) {}

  StreamSchedule run() {
    for (const Issued& issued : program_.instructions) schedule_.used[static_cast<std::size_t>(issued.stream)] = true;
    const auto first = std::find(schedule_.used.begin(), schedule_.used.end(), true);
    if (first != schedule_.used.end()) schedule_.origin = static_cast<Stream>(first - schedule_.used.begin());
    schedule_.held_ = program_.loops;
    for (Loop& held : schedule_.held_) held.times = 1;
    std::int32_t at = 0;
    for (std::size_t loop = 0; loop < program_.loops.size(); ++loop) {
      order(at, program_.loops[loop].first, 0);
      order_loop(loop);
      at = program_.loops[loop].last;
    }
    order(at, static_cast<std::int32_t>(program_.instructions.size()), 0);
    join();
    number_events();
    return std::move(schedule_);
  }

 private:
  struct Awaited {
    std::int32_t by = 0, number = 0;
  };
  // All clocks that later instructions may look at.
  struct Clocks {
    std::array<StreamClock, kNumStreams> known;
    std::vector<StreamClock> ended;  // of the last pass
  };

  // By number, if the passes that are held were all.
  Place place_of(std::int32_t number) const { return place_at(schedule_.held_, number); }
  const Issued& issued_at(std::int32_t number) const {
    return program_.instructions[static_cast<std::size_t>(place_of(number).instruction)];
  }
  std::size_t stream_at(std::int32_t number) const { return static_cast<std::size_t>(issued_at(number).stream); }
  const StreamClock& ended(std::int32_t number) const { return ended_[static_cast<std::size_t>(number)]; }

  void order(std::int32_t first, std::int32_t last, std::int32_t pass) {
    for (std::int32_t i = first; i < last; ++i) {
      const Issued& issued = program_.instructions[static_cast<std::size_t>(i)];
      StreamClock after = issued.after;
      for (std::int32_t& one : after.at) one = awaited(schedule_.held_, one, i, pass);
      order(issued.stream, after);
    }
  }

  // The instruction that comes next.
  void order(Stream stream, const StreamClock& after) {
    const auto number = static_cast<std::int32_t>(ended_.size());
    const auto mine = static_cast<std::size_t>(stream);
    StreamClock& known = known_[mine];
    const std::vector<std::int32_t> waits = needed(known, after, mine);
    if (known[mine] < 0 && waits.empty() && stream != schedule_.origin) schedule_.forked[mine] = true;
    for (const std::int32_t other : waits) {
      waits_.push_back({number, other});
      raise(known, ended(other));
    }
    known[mine] = number;
    ended_.push_back(known);
  }

  void order_loop(std::size_t index) {
    const Loop& loop = program_.loops[index];
    Clocks before;
    for (std::int32_t pass = 0; pass < loop.times; ++pass) {
      schedule_.held_[index].times = pass + 1;
      order(loop.first, loop.last, pass);
      Clocks now{known_, {ended_.end() - loop.size(), ended_.end()}};
      if (pass > 0 && goes_on_alike(before, now, loop.size())) return;
      before = std::move(now);
    }
  }

  // Whether each clock of a stream has moved on by a pass or stayed, and those that move are past those that stay: then
  // no comparison comes out differently in a later pass.
  static bool goes_on_alike(const Clocks& before, const Clocks& now, std::int32_t pass) {
    std::array<std::int32_t, kNumStreams> stays, moves;
    stays.fill(-1), moves.fill(std::numeric_limits<std::int32_t>::max());
    const auto alike = [&](const StreamClock& a, const StreamClock& b) {
      for (std::size_t s = 0; s < kNumStreams; ++s)
        if (a[s] == b[s])
          stays[s] = std::max(stays[s], b[s]);
        else if (a[s] + pass == b[s])
          moves[s] = std::min(moves[s], b[s]);
        else
          return false;
      return true;
    };
    return std::equal(before.known.begin(), before.known.end(), now.known.begin(), alike) &&
           std::equal(before.ended.begin(), before.ended.end(), now.ended.begin(), alike) &&
           std::equal(stays.begin(), stays.end(), moves.begin(), std::less<>());
  }

  // The instructions to wait for, such that what is known comes up to `after` on every stream but `mine`.
  std::vector<std::int32_t> needed(const StreamClock& known, const StreamClock& after, std::size_t mine) const {
    std::vector<std::int32_t> waits;
    for (std::size_t s = 0; s < kNumStreams; ++s) {
      if (s == mine || after[s] <= known[s]) continue;
      CHECK(static_cast<std::size_t>(after[s]) < ended_.size() && stream_at(after[s]) == s,
            "a wait is for an instruction before it, on the stream that it names");
      waits.push_back(after[s]);
    }
    const auto implied = [&](std::int32_t one) {
      return std::any_of(waits.begin(), waits.end(),
                         [&](std::int32_t other) { return other != one && ended(other)[stream_at(one)] >= one; });
    };
    std::vector<std::int32_t> kept;
    std::copy_if(waits.begin(), waits.end(), std::back_inserter(kept), [&](std::int32_t one) { return !implied(one); });
    return kept;
  }

  void join() {
    const auto origin = static_cast<std::size_t>(schedule_.origin);
    StreamClock all;
    for (std::size_t s = 0; s < kNumStreams; ++s) all[s] = known_[s][s];
    joined_ = needed(known_[origin], all, origin);
  }

  // Instructions of the list that any pass waits for get events, in the order of the list; until here waits name
  // instructions.
  void number_events() {
    std::vector<bool> awaited(program_.instructions.size());
    const auto note = [&](std::int32_t number) {
      awaited[static_cast<std::size_t>(place_of(number).instruction)] = true;
    };
    for (const Awaited& wait : waits_) note(wait.number);
    for (const std::int32_t number : joined_) note(number);
    schedule_.events_.assign(awaited.size(), -1);
    for (std::size_t i = 0; i < awaited.size(); ++i) {
      if (!awaited[i]) continue;
      const auto instruction = static_cast<std::int32_t>(i);
      schedule_.recorded.push_back(instruction);
      schedule_.events_[i] = schedule_.num_events;
      schedule_.num_events += schedule_.in_loop(instruction) ? 2 : 1;
    }
    list_waits();
    for (const std::int32_t number : joined_) schedule_.joined.push_back(wait_for(number, nullptr, 0).event);
  }

  void list_waits() {
    std::size_t wait = 0;
    for (std::size_t number = 0; number < ended_.size(); ++number) {
      schedule_.first_wait_.push_back(static_cast<std::uint32_t>(schedule_.waits_.size()));
      const Place by = place_of(static_cast<std::int32_t>(number));
      for (; wait < waits_.size() && waits_[wait].by == static_cast<std::int32_t>(number); ++wait)
        schedule_.waits_.push_back(wait_for(waits_[wait].number, program_.loop_at(by.instruction), by.pass));
    }
    schedule_.first_wait_.push_back(static_cast<std::uint32_t>(schedule_.waits_.size()));
  }

  // For what waits in a pass over that loop, or outside of loops (null). From outside the last passes of a loop are
  // waited for, whose events follow from how many there are.
  StreamSchedule::Wait wait_for(std::int32_t number, const Loop* by, std::int32_t pass) const {
    const Place place = place_of(number);
    const std::int32_t event = schedule_.events_[static_cast<std::size_t>(place.instruction)];
    const Loop* const loop = program_.loop_at(place.instruction);
    if (loop == nullptr) return {event, -1};
    if (loop != by) {
      const std::int32_t back = schedule_.loop_at(place.instruction)->times - 1 - place.pass;
      CHECK(back <= 1, "behind a loop its last two passes are waited for");
      return {event + (loop->times - 1 - back) % 2, -1};
    }
    CHECK(pass - place.pass <= 1, "an instruction in a loop is waited for in its pass and in the next");
    return {event, pass - place.pass};
  }

  const Program& program_;
  StreamSchedule schedule_;
  std::array<StreamClock, kNumStreams> known_;
  std::vector<StreamClock> ended_;  // what is known once an instruction has ended
  std::vector<Awaited> waits_;      // by instruction, ascending
  std::vector<std::int32_t> joined_;
};

bool StreamSchedule::forks() const { return std::find(forked.begin(), forked.end(), true) != forked.end(); }

std::int64_t StreamSchedule::num_waits() const {
  return static_cast<std::int64_t>(waits_.size() + joined.size()) + std::count(forked.begin(), forked.end(), true);
}

StreamSchedule schedule_streams(const Program& program) { return StreamScheduler(program).run(); }

}  // namespace trainer
