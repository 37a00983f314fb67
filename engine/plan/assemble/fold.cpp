// 1. The two rounds are compared instruction by instruction. Their regions may differ in the buffer, and of the batch
//    in the offset.
// 2. Where they differ the line is looked up: its buffers become one ring, with as many parts as are alive at once in
//    these rounds. Workspaces have no line; both rounds get the same one.
// 3. Every region of a line names the ring instead.
#include "engine/plan/assemble/fold.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "engine/plan/loop.h"
#include "engine/plan/memory.h"

namespace trainer {
namespace {

// The instruction without its regions and waits.
Issued outline(Issued issued) {
  issued.after = {};
  for_each_region(issued.instruction, [](Region& region) { region = {}; });
  return issued;
}

std::vector<Region> regions_of(const Issued& issued) {
  std::vector<Region> regions;
  for_each_region(issued.instruction, [&](const Region& region) { regions.push_back(region); });
  return regions;
}

class Folding {
 public:
  Folding(Role& role, std::size_t program, const RoundMarks& marks, int micro_batches,
          const std::vector<Succession>& successions)
      : role_(role),
        program_(role.programs[program]),
        marks_(marks),
        micro_batches_(micro_batches),
        successions_(successions),
        lives_(lifetimes(role, program_)) {}

  bool run(int times) {
    const std::int64_t before = most_alive();
    return make(times) && static_cast<double>(most_alive()) <= kMostMemory * static_cast<double>(before);
  }

 private:
  // Parts of rings are nobody else's, even where a schedule cools down and has use for fewer. Of what is alive at once
  // in the program.
  static constexpr double kMostMemory = 1.05;

  std::int64_t most_alive() const {
    const std::vector<std::int64_t> live = live_bytes(role_, program_);
    return live.empty() ? 0 : *std::ranges::max_element(live);
  }

  bool make(int times) {
    if (marks_.before < 0 || marks_.first - marks_.before != marks_.last - marks_.first || marks_.last == marks_.first)
      return false;
    for (std::int32_t i = 0; i < marks_.last - marks_.first; ++i)
      if (!alike(issued(marks_.before + i), issued(marks_.first + i))) return false;
    for (std::size_t id = 0; id < role_.buffers.size(); ++id)
      if (const std::int32_t line = line_of(static_cast<BufferId>(id));
          advances_.contains(line) && lives_[id].first >= 0)
        members_[line].push_back(static_cast<BufferId>(id));
    std::unordered_map<BufferId, BufferId> rings;  // by buffer
    for (const auto& [line, advance] : advances_) {
      const std::optional<BufferId> ring = make_ring(line, advance);
      if (!ring) return false;
      for (const BufferId member : members_[line]) rings[member] = *ring;
    }
    for (const auto& [buffer, stride] : batches_) {
      role_.buffers[at(buffer)].stride = stride;
      role_.buffers[at(buffer)].advance = micro_batches_;
    }
    for (const auto& [before, now] : twins_) role_.buffers[at(now)].stride = aligned(role_.buffers[at(now)].bytes);
    const auto rename = [&](Region& region) {
      if (region.buffer < 0) return;
      if (const auto twin = twins_.find(region.buffer); twin != twins_.end()) region.buffer = twin->second;
      const auto found = rings.find(region.buffer);
      if (found == rings.end()) return;
      const Buffer& ring = role_.buffer(found->second);
      region.offset += succession(region.buffer).number % ring.parts() * ring.stride;
      region.buffer = found->second;
    };
    for (Issued& one : program_.instructions) for_each_region(one.instruction, rename);
    for (Unit& unit : role_.units)
      for (Slot& slot : unit.slots)
        if (!slot.persistent) rename(slot.region);
    program_.loop = {marks_.first, marks_.last, times, micro_batches_};
    return true;
  }

  static std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }
  const Issued& issued(std::int32_t i) const { return program_.instructions[at(i)]; }
  const Lifetime& life(BufferId id) const { return lives_[at(id)]; }
  std::int32_t program_index() const { return static_cast<std::int32_t>(&program_ - role_.programs.data()); }
  Succession succession(BufferId id) const {
    return at(id) < successions_.size() ? successions_[at(id)] : Succession{};
  }
  // None of what both rounds touch alike, and of what lives longer than the program.
  std::int32_t line_of(BufferId id) const {
    return role_.buffer(id).program != program_index() || fixed_.contains(id) ? -1 : succession(id).line;
  }
  bool inside(BufferId id, std::int32_t first, std::int32_t last) const {
    return role_.buffer(id).program >= 0 && life(id).first >= first && life(id).last < last;
  }

  bool alike(const Issued& before, const Issued& now) {
    const Loop round{.micro_batches = micro_batches_};
    if (!(outline(in_pass(role_, round, before, 1)) == outline(now))) return false;
    const std::vector<Region> mine = regions_of(before), theirs = regions_of(now);
    for (std::size_t i = 0; i < mine.size(); ++i)
      if (!alike(mine[i], theirs[i])) return false;
    return true;
  }

  bool alike(const Region& before, Region now) {
    if (before.buffer == now.buffer) {
      if (const std::int64_t moved = now.offset - before.offset; moved != 0) {  // of the batch
        if (role_.buffer(now.buffer).category != Category::inputs || moved < 0 || moved % micro_batches_ != 0)
          return false;
        if (const auto [known, added] = batches_.try_emplace(now.buffer, moved / micro_batches_);
            !added && known->second != moved / micro_batches_)
          return false;
      }
      now.offset = before.offset;
      fixed_.insert(now.buffer);
      return now == before;
    }
    const BufferId one = before.buffer, next = now.buffer;
    now.buffer = one;
    if (!(now == before) || role_.buffer(one).program < 0 || role_.buffer(next).program < 0 ||
        role_.buffer(one).bytes != role_.buffer(next).bytes)
      return false;
    const Succession a = succession(one), b = succession(next);
    if (a.line < 0 && b.line < 0 && inside(one, marks_.before, marks_.first) &&
        inside(next, marks_.first, marks_.last)) {
      const auto [known, added] = twins_.try_emplace(one, next);
      return added || known->second == next;
    }
    if (a.line < 0 || a.line != b.line || b.number <= a.number) return false;
    const auto [known, added] = advances_.try_emplace(a.line, b.number - a.number);
    return added || known->second == b.number - a.number;
  }

  // Parts that a ring needs for both, if they are alive at the same time.
  std::int32_t parts_for(BufferId a, BufferId b) const {
    if (life(a).last < life(b).first || life(b).last < life(a).first) return 1;
    return std::abs(succession(b).number - succession(a).number) + 1;
  }

  // Of the buffers of a line that are alive in these rounds, with as many parts as they need. Those before and behind,
  // the nearest first, take part where that needs no more: a schedule that cools down may put off more than it did
  // before.
  std::optional<BufferId> make_ring(std::int32_t line, std::int32_t advance) {
    const auto distance = [&](BufferId id) {
      return std::max({0, marks_.before - life(id).last, life(id).first - marks_.last + 1});
    };
    std::vector<BufferId> all = std::exchange(members_[line], {}), &members = members_[line];
    std::ranges::stable_sort(all, {}, distance);
    std::int32_t parts = 1;
    for (const BufferId id : all) {
      if (role_.buffer(id).bytes != role_.buffer(all.front()).bytes) return std::nullopt;
      std::int32_t needed = 1;
      for (const BufferId other : members) needed = std::max(needed, parts_for(id, other));
      if (needed > parts && distance(id) > 0) continue;
      parts = std::max(parts, needed);
      members.push_back(id);
    }
    Buffer& ring = role_.buffers[at(members.front())];
    ring.stride = aligned(ring.bytes);
    ring.bytes = parts == 1 ? ring.bytes : parts * ring.stride;
    ring.advance = advance;
    return members.front();
  }

  Role& role_;
  Program& program_;
  const RoundMarks marks_;
  const std::int32_t micro_batches_;
  const std::vector<Succession>& successions_;
  const std::vector<Lifetime> lives_;
  std::map<std::int32_t, std::int32_t> advances_;  // of lines that become rings
  std::map<std::int32_t, std::vector<BufferId>> members_;
  std::map<BufferId, std::int64_t> batches_;  // bytes of a micro-batch
  std::map<BufferId, BufferId> twins_;        // workspaces of the round before by those of the round that loops
  std::set<BufferId> fixed_;                  // that both rounds touch in the same place
};

}  // namespace

bool fold(Role& role, std::size_t program, const RoundMarks& marks, int times, int micro_batches,
          const std::vector<Succession>& successions) {
  return Folding(role, program, marks, micro_batches, successions).run(times);
}

void drop_unused_buffers(Role& role) {
  std::vector<BufferId> renamed(role.buffers.size(), -1);
  const auto for_each_id = [&](const auto& visit) {
    for (Program& program : role.programs)
      for (Issued& issued : program.instructions)
        for_each_region(issued.instruction, [&](Region& region) { visit(region.buffer); });
    for (Unit& unit : role.units)
      for (Slot& slot : unit.slots) visit(slot.region.buffer);
    for (BufferId* id : {&role.scalars, &role.applied, &role.good_steps}) visit(*id);
  };
  for_each_id([&](BufferId id) {
    if (id >= 0) renamed[static_cast<std::size_t>(id)] = 0;
  });
  std::vector<Buffer> kept;
  for (std::size_t id = 0; id < renamed.size(); ++id) {
    if (renamed[id] < 0) continue;
    renamed[id] = static_cast<BufferId>(kept.size());
    kept.push_back(role.buffers[id]);
  }
  role.buffers = std::move(kept);
  for_each_id([&](BufferId& id) {
    if (id >= 0) id = renamed[static_cast<std::size_t>(id)];
  });
}

bool waits_alike(const Role& role) {
  return std::all_of(role.programs.begin(), role.programs.end(), [](const Program& program) {
    if (!program.loops()) return true;
    const Loop& loop = program.loop;
    for (std::int32_t i = loop.first; i < loop.last; ++i) {
      StreamClock before = program.instructions[static_cast<std::size_t>(i - loop.size())].after;
      for (std::int32_t& one : before.at)
        if (one >= 0) one += loop.size();
      const StreamClock& after = program.instructions[static_cast<std::size_t>(i)].after;
      if (!(before == after) || std::any_of(after.begin(), after.end(), [&](std::int32_t one) {
            return one >= 0 && one < loop.first - loop.size();
          }))
        return false;
    }
    return true;
  });
}

}  // namespace trainer
