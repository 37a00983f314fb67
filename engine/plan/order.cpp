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

void derive(const Role& role, const Mesh& mesh, Program& program) {
  AddressMap<LastTouch> memory;
  std::vector<Clock> ended(program.instructions.size());  // what is known once instruction i has ended
  std::array<Clock, kNumStreams> known;
  const std::multimap<std::int32_t, BufferId> rings = ends_of_rings(role, program);
  const auto begin = [&](const Region& region) { return role.buffer(region.buffer).offset + region.offset; };
  const auto end = [&](const Region& region) {
    return begin(region) + (mesh.group_size(region.over) - 1) * region.step + region.bytes;
  };

  std::set<std::pair<BufferId, std::size_t>> met;  // rings and streams
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    Issued& issued = program.instructions[i];
    const auto mine = static_cast<std::size_t>(issued.stream);
    Clock needed = kNever;  // of this stream it may come to be the instruction itself
    for_each_access(issued.instruction, [&](Access, const Region& region) {
      const Buffer& buffer = role.buffer(region.buffer);
      if (!program.repeats() || !buffer.own_parts || !met.emplace(region.buffer, mine).second) return;
      memory.update(buffer.offset, buffer.offset + buffer.bytes, [&](const LastTouch& touch) {
        raise(needed, touch.writes);
        raise(needed, touch.reads);
      });
    });
    for_each_access(issued.instruction, [&](Access access, const Region& region) {
      if (access != Access::read) return;
      memory.update(begin(region), end(region), [&](LastTouch& touch) {
        raise(needed, touch.writes);
        touch.reads[mine] = static_cast<std::int32_t>(i);
      });
    });
    LastTouch written;
    written.writes[mine] = static_cast<std::int32_t>(i);
    for_each_access(issued.instruction, [&](Access access, const Region& region) {
      if (access == Access::read) return;
      memory.replace(begin(region), end(region), written, [&](const LastTouch& touch) {
        raise(needed, touch.writes);
        raise(needed, touch.reads);
      });
    });
    issued.after = kNever;
    for (std::size_t s = 0; s < kNumStreams; ++s) {
      if (s == mine || needed[s] <= known[mine][s]) continue;
      issued.after[s] = needed[s];
    }
    drop_implied(issued.after, ended);
    for (std::size_t s = 0; s < kNumStreams; ++s)
      if (issued.after[s] >= 0) raise(known[mine], ended[static_cast<std::size_t>(issued.after[s])]);
    known[mine][mine] = static_cast<std::int32_t>(i);
    ended[i] = known[mine];
    for (auto [ring, end_of_all] = rings.equal_range(static_cast<std::int32_t>(i)); ring != end_of_all; ++ring) {
      const Buffer& buffer = role.buffer(ring->second);
      LastTouch any;
      memory.update(buffer.offset, buffer.offset + buffer.bytes, [&](LastTouch& touch) {
        raise(any.writes, touch.writes);
        raise(any.reads, touch.reads);
      });
      memory.assign(buffer.offset, buffer.offset + buffer.bytes, any);
    }
  }
}

}  // namespace

void derive_order(Role& role, const Mesh& mesh) {
  for (Program& program : role.programs) derive(role, mesh, program);
}

}  // namespace trainer
