// Order between streams, derived from what instructions read and write. Two instructions that touch the same address
// are ordered if one of them writes; whether they name the same buffer or one that took over its memory makes no
// difference, and a slice counts as all the slices of its group, so that one order serves every rank. Waits that an
// earlier wait implies are left out. A ring whose micro-batches have parts of their own counts as touched all over by
// what touches it first on each stream: passes reach parts that the list does not.
#include <algorithm>
#include <set>
#include <utility>

#include "engine/plan/address_map.h"
#include "engine/plan/loop.h"
#include "engine/plan/plan.h"

namespace trainer {
namespace {

using Clock = StreamClock;  // of what is known to have ended
constexpr Clock kNever;

struct LastTouch {
  Clock writes = kNever;
  Clock reads = kNever;
};

void raise(Clock& clock, const Clock& other) {
  for (std::size_t s = 0; s < kNumStreams; ++s) clock[s] = std::max(clock[s], other[s]);
}

// Leaves out the waits of an instruction that another of its waits implies.
void drop_implied(Clock& after, const std::vector<Clock>& ended) {
  for (std::size_t s = 0; s < kNumStreams; ++s)
    for (std::size_t t = 0; t < kNumStreams; ++t)
      if (s != t && after[s] >= 0 && after[t] >= 0 && ended[static_cast<std::size_t>(after[t])][s] >= after[s])
        after[s] = -1;
}

class Derivation {
 public:
  Derivation(const Role& role, const Mesh& mesh, Program& program)
      : role_(role),
        mesh_(mesh),
        program_(program),
        ended_(program.instructions.size()),
        rings_(ends_of_rings(role, program)) {}

  void run() {
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      wait(i, needed(i));
      end_rings(i);
    }
  }

 private:
  std::int64_t begin(const Region& region) const { return role_.buffer(region.buffer).offset + region.offset; }
  std::int64_t end(const Region& region) const {
    return begin(region) + (mesh_.group_size(region.over) - 1) * region.step + region.bytes;
  }

  // What touched the memory of an instruction before it; notes what that touches. Of its own stream it may come to be
  // the instruction itself.
  Clock needed(std::size_t i) {
    const Issued& issued = program_.instructions[i];
    const auto mine = static_cast<std::size_t>(issued.stream);
    Clock needed = kNever;
    const auto all = [&](const LastTouch& touch) {
      raise(needed, touch.writes);
      raise(needed, touch.reads);
    };
    for_each_access(issued.instruction, [&](Access, const Region& region) {
      const Buffer& buffer = role_.buffer(region.buffer);
      if (!program_.repeats() || !buffer.own_parts || !met_.emplace(region.buffer, mine).second) return;
      memory_.update(buffer.offset, buffer.offset + buffer.bytes, all);
    });
    for_each_access(issued.instruction, [&](Access access, const Region& region) {
      if (access != Access::read) return;
      memory_.update(begin(region), end(region), [&](LastTouch& touch) {
        raise(needed, touch.writes);
        touch.reads[mine] = static_cast<std::int32_t>(i);
      });
    });
    LastTouch written;
    written.writes[mine] = static_cast<std::int32_t>(i);
    for_each_access(issued.instruction, [&](Access access, const Region& region) {
      if (access != Access::read) memory_.replace(begin(region), end(region), written, all);
    });
    return needed;
  }

  void wait(std::size_t i, const Clock& needed) {
    Issued& issued = program_.instructions[i];
    const auto mine = static_cast<std::size_t>(issued.stream);
    issued.after = kNever;
    for (std::size_t s = 0; s < kNumStreams; ++s) {
      if (s == mine || needed[s] <= known_[mine][s]) continue;
      issued.after[s] = needed[s];
    }
    drop_implied(issued.after, ended_);
    for (std::size_t s = 0; s < kNumStreams; ++s)
      if (issued.after[s] >= 0) raise(known_[mine], ended_[static_cast<std::size_t>(issued.after[s])]);
    known_[mine][mine] = static_cast<std::int32_t>(i);
    ended_[i] = known_[mine];
  }

  void end_rings(std::size_t i) {
    for (auto [ring, last] = rings_.equal_range(static_cast<std::int32_t>(i)); ring != last; ++ring) {
      const Buffer& buffer = role_.buffer(ring->second);
      LastTouch any;
      memory_.update(buffer.offset, buffer.offset + buffer.bytes, [&](LastTouch& touch) {
        raise(any.writes, touch.writes);
        raise(any.reads, touch.reads);
      });
      memory_.assign(buffer.offset, buffer.offset + buffer.bytes, any);
    }
  }

  const Role& role_;
  const Mesh& mesh_;
  Program& program_;
  AddressMap<LastTouch> memory_;
  std::vector<Clock> ended_;  // what is known once instruction i has ended
  std::array<Clock, kNumStreams> known_;
  const std::multimap<std::int32_t, BufferId> rings_;
  std::set<std::pair<BufferId, std::size_t>> met_;  // rings and streams
};

}  // namespace

void derive_order(Role& role, const Mesh& mesh) {
  for (Program& program : role.programs) Derivation(role, mesh, program).run();
}

}  // namespace trainer
