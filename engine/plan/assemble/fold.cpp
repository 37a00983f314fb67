// 1. The two rounds of each loop are compared instruction by instruction. Their regions may differ in the buffer, and
//    those of the batch in the offset.
// 2. Where they differ the line is looked up: its buffers become one ring, with as many parts as are alive at once in
//    these rounds. What several loops touch of a micro-batch is kept from one to the other: it has a part for every
//    micro-batch of the run. Workspaces have no line; both rounds get the same one.
// 3. Every region of a line names the ring instead.
#include "engine/plan/assemble/fold.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "engine/core/index.h"
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

// One way over a boundary: what it carries, and whether it is sent or received here.
using Way = std::tuple<std::int32_t, bool, bool>;

template <typename Visit>
void for_each_part(Exchange& exchange, const Visit& visit) {
  for (auto& send : exchange.sends) visit(send, Way{send.carried.boundary, send.carried.backward, true});
  for (auto& receive : exchange.receives)
    visit(receive, Way{receive.carried.boundary, receive.carried.backward, false});
}

class Folding {
 public:
  Folding(Role& role, std::size_t program, const std::vector<RoundMarks>& marks, const Rounds& rounds,
          const std::vector<Succession>& successions)
      : role_(role),
        program_(role.programs[program]),
        marks_(marks),
        times_(rounds.times),
        micro_batches_(rounds.micro_batches),
        listed_(rounds.left),
        successions_(successions),
        lives_(lifetimes(role, program_)) {}

  Folded run() {
    constexpr Folded kUnlike{.alike = false};
    if (!let_exchanges_go_with_loops()) return kUnlike;
    for (loop_ = 0; loop_ < num_loops(); ++loop_)
      if (!rounds_alike()) return kUnlike;
    find_users();
    if (!find_members()) return kUnlike;
    const double before = static_cast<double>(most_alive_of_run());
    if (!make_rings() || !rename_all()) return kUnlike;
    const std::int64_t all = listed_ + (times_ - 1) * micro_batches_;
    return {.memory = static_cast<double>(most_alive()) / before,
            .instructions = static_cast<std::int64_t>(program_.instructions.size()) * all / listed_};
  }

 private:
  static constexpr std::int32_t kSeveral = -1;         // of a line that several loops touch
  using Ring = std::pair<std::int32_t, std::int32_t>;  // line, loop

  std::int32_t num_loops() const { return static_cast<std::int32_t>(marks_.size()); }
  const RoundMarks& marks() const { return marks_[at(loop_)]; }
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

  // ---- What goes with which loop ----

  // Messages go with the loop in which they pass that way over their boundary.
  bool let_exchanges_go_with_loops() {
    if (num_loops() == 1) return true;
    std::map<Way, std::int32_t> ways;
    bool all = true;
    const auto for_each_in = [&](std::int32_t first, std::int32_t last, const auto& visit) {
      for (std::int32_t i = first; i < last; ++i)
        if (auto* exchange = std::get_if<Exchange>(&program_.instructions[at(i)].instruction))
          for_each_part(*exchange, visit);
    };
    for (std::int32_t loop = 0; loop < num_loops(); ++loop)
      for_each_in(marks_[at(loop)].first, marks_[at(loop)].last,
                  [&](const auto&, const Way& way) { all = ways.try_emplace(way, loop).first->second == loop && all; });
    for_each_in(0, static_cast<std::int32_t>(program_.instructions.size()), [&](auto& part, const Way& way) {
      const auto found = ways.find(way);
      all = all && found != ways.end();
      if (all) part.loop = found->second;
    });
    return all;
  }

  // The loops that touch each buffer with what belongs to a pass.
  void find_users() {
    users_.resize(role_.buffers.size());
    for (Issued& one : program_.instructions) {
      if (auto* exchange = std::get_if<Exchange>(&one.instruction))
        for_each_part(*exchange,
                      [&](const auto& part, const Way&) { users_[at(part.region.region.buffer)].insert(part.loop); });
      else if (one.why.micro_batch >= 0)
        for_each_access(one.instruction,
                        [&](Access, const Region& region) { users_[at(region.buffer)].insert(one.why.loop); });
    }
  }

  // What belongs to no pass goes with the loop whose rings it touches.
  bool go_with_ring(Issued& one, const std::unordered_map<BufferId, std::int32_t>& loops) const {
    if (num_loops() == 1 || one.why.micro_batch >= 0 || std::holds_alternative<Exchange>(one.instruction)) return true;
    std::set<std::int32_t> touched;
    for_each_access(one.instruction, [&](Access, const Region& region) {
      if (const auto found = loops.find(region.buffer); found != loops.end()) touched.insert(found->second);
    });
    if (touched.empty()) return true;
    one.why.loop = *touched.begin();
    return touched.size() == 1 && one.why.loop != kSeveral;
  }

  // ---- Comparing rounds ----

  bool rounds_alike() {
    const auto [before, first, last] = marks();
    if (before < 0 || first - before != last - first || last == first) return false;
    for (std::int32_t i = 0; i < last - first; ++i)
      if (!alike(issued(before + i), issued(first + i))) return false;
    return true;
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
    if (a.line < 0 && b.line < 0 && inside(one, marks().before, marks().first) &&
        inside(next, marks().first, marks().last)) {
      const auto [known, added] = twins_.try_emplace(one, next);
      return added || known->second == next;
    }
    if (a.line < 0 || a.line != b.line || b.number <= a.number) return false;
    const auto [known, added] = advances_.try_emplace({a.line, loop_}, b.number - a.number);
    return added || known->second == b.number - a.number;
  }

  // ---- Rings ----

  // Of the buffers of a line that are alive in a loop's rounds, with as many parts as they need. Those before and
  // behind, the nearest first, take part where that needs no more: a schedule that cools down may put off more than it
  // did before.
  bool find_members() {
    std::map<std::int32_t, std::vector<BufferId>> lines;
    std::map<std::int32_t, std::set<std::int32_t>> loops;
    for (const auto& [ring, advance] : advances_) loops[ring.first].insert(ring.second);
    for (std::size_t id = 0; id < role_.buffers.size(); ++id)
      if (const std::int32_t line = line_of(static_cast<BufferId>(id)); loops.contains(line) && lives_[id].first >= 0)
        lines[line].push_back(static_cast<BufferId>(id));
    for (const auto& [line, touching] : loops) {
      const std::vector<BufferId>& all = lines[line];
      const bool of_micro_batches =
          std::ranges::all_of(all, [&](BufferId id) { return role_.buffer(id).micro_batch >= 0; });
      if (touching.size() == 1 || !of_micro_batches) {
        for (const std::int32_t loop : touching)
          if (!find_members({line, loop}, all)) return false;
        continue;
      }
      for (const std::int32_t loop : touching)
        if (advances_.at({line, loop}) != micro_batches_) return false;
      members_[{line, kSeveral}] = all;
      parts_[{line, kSeveral}] = listed_ + (times_ - 1) * micro_batches_;
    }
    return true;
  }

  bool find_members(const Ring& ring, std::vector<BufferId> all) {
    const RoundMarks& rounds = marks_[at(ring.second)];
    const auto distance = [&](BufferId id) {
      return std::max({0, rounds.before - life(id).last, life(id).first - rounds.last + 1});
    };
    std::vector<BufferId>& members = members_[ring];
    std::ranges::stable_sort(all, {}, distance);
    std::int32_t& parts = parts_[ring] = 1;
    for (const BufferId id : all) {
      const std::set<std::int32_t>& users = users_[at(id)];
      const bool others = num_loops() > 1 && (users.size() > 1 || (users.size() == 1 && *users.begin() != ring.second));
      if (others && distance(id) == 0) return false;
      if (others || (num_loops() > 1 && taken_.contains(id))) continue;
      std::int32_t needed = 1;
      for (const BufferId other : members) needed = std::max(needed, parts_for(id, other));
      if (needed > parts && distance(id) > 0) continue;
      parts = std::max(parts, needed);
      members.push_back(id);
      taken_.insert(id);
    }
    return !members.empty();
  }

  // Parts that a ring needs for both, if they are alive at the same time.
  std::int32_t parts_for(BufferId a, BufferId b) const {
    if (life(a).last < life(b).first || life(b).last < life(a).first) return 1;
    return std::abs(succession(b).number - succession(a).number) + 1;
  }

  std::int64_t most_alive() const {
    const std::vector<std::int64_t> live = live_bytes(role_, program_);
    return live.empty() ? 0 : *std::ranges::max_element(live);
  }

  // The same of a run of all micro-batches, each of which keeps what the list's keep.
  std::int64_t most_alive_of_run() {
    const std::vector<Buffer> listed = role_.buffers;
    for (const auto& [ring, members] : members_)
      for (const BufferId id : members) {
        std::int64_t& bytes = role_.buffers[at(id)].bytes;
        if (ring.second == kSeveral) bytes = aligned(bytes) * parts_.at(ring) / listed_;
      }
    const std::int64_t most = most_alive();
    role_.buffers = listed;
    return most;
  }

  bool make_rings() {
    for (const auto& [ring, members] : members_) {
      const std::int64_t bytes = role_.buffer(members.front()).bytes;
      for (const BufferId id : members)
        if (role_.buffer(id).bytes != bytes) return false;
      Buffer& made = role_.buffers[at(members.front())];
      made.own_parts = ring.second == kSeveral;
      made.stride = aligned(bytes);
      made.bytes = parts_.at(ring) == 1 ? bytes : parts_.at(ring) * made.stride;
      made.advance = made.own_parts ? micro_batches_ : advances_.at(ring);
      for (const BufferId id : members) rings_[id] = members.front();
      loops_[members.front()] = ring.second;
    }
    for (const auto& [buffer, stride] : batches_) {
      role_.buffers[at(buffer)].stride = stride;
      role_.buffers[at(buffer)].advance = micro_batches_;
      role_.buffers[at(buffer)].own_parts = num_loops() > 1;
    }
    for (const auto& [before, now] : twins_) role_.buffers[at(now)].stride = aligned(role_.buffers[at(now)].bytes);
    return true;
  }

  bool rename_all() {
    const auto rename = [&](Region& region) {
      if (region.buffer < 0) return;
      if (const auto twin = twins_.find(region.buffer); twin != twins_.end()) region.buffer = twin->second;
      const auto found = rings_.find(region.buffer);
      if (found == rings_.end()) return;
      const Buffer& ring = role_.buffer(found->second);
      region.offset += succession(region.buffer).number % ring.parts() * ring.stride;
      region.buffer = found->second;
    };
    for (Issued& one : program_.instructions) {
      for_each_region(one.instruction, rename);
      if (!go_with_ring(one, loops_)) return false;
    }
    for (Unit& unit : role_.units)
      for (Slot& slot : unit.slots)
        if (!slot.persistent) rename(slot.region);
    for (const RoundMarks& rounds : marks_)
      program_.loops.push_back({rounds.first, rounds.last, times_, micro_batches_});
    return true;
  }

  Role& role_;
  Program& program_;
  const std::vector<RoundMarks>& marks_;
  const std::int32_t times_, micro_batches_;
  const std::int32_t listed_;  // micro-batches
  const std::vector<Succession>& successions_;
  const std::vector<Lifetime> lives_;
  std::int32_t loop_ = 0;                      // that is compared
  std::map<Ring, std::int32_t> advances_;      // of lines that become rings
  std::map<BufferId, std::int64_t> batches_;   // bytes of a micro-batch
  std::map<BufferId, BufferId> twins_;         // workspaces of a round before by those of the round that loops
  std::set<BufferId> fixed_;                   // that both rounds touch in the same place
  std::vector<std::set<std::int32_t>> users_;  // of each buffer: loops
  std::map<Ring, std::vector<BufferId>> members_;
  std::map<Ring, std::int32_t> parts_;
  std::set<BufferId> taken_;                          // members of a ring of one loop
  std::unordered_map<BufferId, BufferId> rings_;      // of members
  std::unordered_map<BufferId, std::int32_t> loops_;  // of rings
};

}  // namespace

Folded fold(Role& role, std::size_t program, const std::vector<RoundMarks>& marks, const Rounds& rounds,
            const std::vector<Succession>& successions) {
  return Folding(role, program, marks, rounds, successions).run();
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
  const auto alike = [](const Program& program, const Loop& loop) {
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
  };
  return std::ranges::all_of(role.programs, [&](const Program& program) {
    return std::ranges::all_of(program.loops, [&](const Loop& loop) { return alike(program, loop); });
  });
}

}  // namespace trainer
