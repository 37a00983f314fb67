// When buffers are alive, and what that gives placing.h to place.
#include "engine/plan/memory.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "engine/core/parallel.h"

namespace trainer {
namespace {

// What communication reads or writes last is held until the next one of its kind, and what is moved away until the next
// move away. Were it free at once, the next kernel could take its place, and by that have to wait until the bytes have
// left: what was to hide behind computing would stop it. Of each instruction: until which one; -1: neither.
std::vector<std::int32_t> held_until(const Role& role, const Program& program) {
  std::vector<std::int32_t> until(program.instructions.size(), -1);
  std::map<std::tuple<std::size_t, int, int>, std::int32_t> next;
  for (std::size_t i = until.size(); i-- > 0;) {
    const Instruction& instruction = program.instructions[i].instruction;
    const auto* collective = std::get_if<Collective>(&instruction);
    const auto* move = std::get_if<Move>(&instruction);
    const bool leaves = move != nullptr && role.space_of(move->from.region) == Space::device;
    if (collective == nullptr && !leaves && !std::holds_alternative<Exchange>(instruction)) continue;
    const int kind = collective == nullptr ? 0 : static_cast<int>(collective->kind);
    const int axes = collective == nullptr ? 0 : collective->axes.mask;
    const auto [at, last] = next.try_emplace({instruction.index(), kind, axes}, -1);
    until[i] = last ? static_cast<std::int32_t>(i) : at->second;
    at->second = static_cast<std::int32_t>(i);
  }
  return until;
}

// Of the device.
bool is_persistent(const Buffer& buffer) { return buffer.program < 0 && buffer.space == Space::device; }

// A ring whose passes all find their content in the same part: one content after the other in each.
bool reused(const Buffer& buffer) { return buffer.stride > 0 && buffer.advance % buffer.parts() == 0; }

// The bytes of a buffer that something later reads before it is written.
class Needed {
 public:
  bool nothing() const { return ranges_.empty(); }
  void read(std::int64_t first, std::int64_t last) {
    written(first, last);
    ranges_.emplace_back(first, last);
  }
  void written(std::int64_t first, std::int64_t last) {
    for (std::size_t i = 0; i < ranges_.size();) {
      auto& [from, to] = ranges_[i];
      if (to <= first || last <= from) {
        ++i;
      } else if (first <= from && to <= last) {
        ranges_[i] = ranges_.back();
        ranges_.pop_back();
      } else if (from < first && last < to) {
        ranges_.emplace_back(last, std::exchange(to, first));
        ++i;
      } else {
        (from < first ? to : from) = from < first ? first : last;
        ++i;
      }
    }
  }

 private:
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges_;  // disjoint
};

// Lists of so many instructions are placed in blocks, if that needs at most so much more than is alive at once. Where a
// program loops, what its passes wait for has to come out alike, which blocks would hinder.
constexpr std::size_t kLong = 8000;
constexpr double kMostOfBlocks = 1.004;

// Where segments begin: what follows is part of another pass than what came before.
std::vector<std::int32_t> begins_of_passes(const Program& program) {
  std::vector<std::int32_t> begins{0};
  std::tuple<Provenance::Phase, std::int16_t, std::int32_t> last{};
  for (std::size_t i = 1; i < program.instructions.size(); ++i) {
    const Provenance& why = program.instructions[i].why;
    if (!is_pass(why.phase)) continue;
    const std::tuple pass(why.phase, why.chunk, why.micro_batch);
    if (pass != last) begins.push_back(static_cast<std::int32_t>(i));
    last = pass;
  }
  return begins;
}

std::int64_t place_long(std::vector<Placed>& items, std::int64_t base, const Program& program, std::int64_t limit,
                        Care care) {
  const std::size_t num_instructions = program.instructions.size();
  if (care == Care::little) return place_in_blocks(items, begins_of_passes(program), base, num_instructions, true);
  const std::int64_t least = most_alive(items, base, num_instructions);
  const std::int64_t end = place_in_blocks(items, begins_of_passes(program), base, num_instructions);
  const bool near = static_cast<double>(end) <= kMostOfBlocks * static_cast<double>(least);
  if (near && (end <= limit || least > limit)) return end;
  std::vector<Placed> whole = items;
  const std::int64_t end_of_whole = place(whole, base, num_instructions);
  if (end_of_whole >= end) return end;
  items = std::move(whole);
  return end_of_whole;
}

// The buffers of a program, and their numbers.
std::vector<Placed> items_of(const Role& role, std::int32_t program, const Lives& lives, std::vector<BufferId>& ids) {
  std::vector<Placed> items;
  for (std::size_t i = 0; i < role.buffers.size(); ++i) {
    const auto id = static_cast<BufferId>(i);
    if (role.buffers[i].program != program || lives.of(id).empty()) continue;
    items.push_back({role.buffers[i].bytes, lives.of(id)});
    ids.push_back(id);
  }
  return items;
}

bool is_long(const Program& program) { return program.instructions.size() >= kLong && !program.repeats(); }

std::int64_t place_program(Role& role, std::int32_t index, std::int64_t limit, Care care) {
  const Program& program = role.programs[static_cast<std::size_t>(index)];
  const Lives lives = live_intervals(role, program);
  std::vector<BufferId> ids;
  std::vector<Placed> items = items_of(role, index, lives, ids);
  const std::int64_t base = role.persistent_bytes;
  const std::int64_t end = is_long(program) ? place_long(items, base, program, limit, care)
                                            : place(items, base, program.instructions.size());
  for (std::size_t i = 0; i < items.size(); ++i)
    role.buffers[static_cast<std::size_t>(ids[i])].offset = items[i].offset;
  return end;
}

// Walks a program from behind: what is read later is alive.
class Backwards {
 public:
  Backwards(const Role& role, const Program& program)
      : role_(role),
        program_(program),
        earliest_(role.buffers.size()),
        needed_(std::ranges::any_of(role.buffers, reused) ? role.buffers.size() : 0) {}

  Lives run() {
    for (auto i = static_cast<std::int32_t>(program_.instructions.size()); i-- > 0;) visit(i);
    const std::vector<std::int32_t> until = held_until(role_, program_);
    const auto held = [&](Lifetime life) {
      return Lifetime{life.first, std::max(life.last, until[static_cast<std::size_t>(life.last)])};
    };
    std::stable_sort(later_.begin(), later_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::size_t> begins;
    std::vector<Lifetime> all;
    begins.reserve(role_.buffers.size() + 1);
    all.reserve(role_.buffers.size() + later_.size());
    auto later = later_.begin();
    for (std::size_t id = 0; id < role_.buffers.size(); ++id) {
      begins.push_back(all.size());
      if (earliest_[id].first < 0) continue;
      all.push_back(through_loop(id, held(earliest_[id])));
      const auto first = later;
      while (later != later_.end() && later->first == id) ++later;
      for (auto one = later; one != first;) all.push_back(held((--one)->second));  // the last was found first
    }
    begins.push_back(all.size());
    return {std::move(begins), std::move(all)};
  }

 private:
  void visit(std::int32_t i) {
    const Instruction& instruction = program_.instructions[static_cast<std::size_t>(i)].instruction;
    for_each_access(instruction, [&](Access, const Region& region) {
      const auto id = static_cast<std::size_t>(region.buffer);
      Lifetime& life = earliest_[id];
      if (life.first < 0) {
        life = {i, i};
      } else if (life.first > i) {
        if (!needed_.empty() && reused(role_.buffers[id]) && needed_[id].nothing())
          later_.emplace_back(id, std::exchange(life, {i, i}));
        life.first = i;
      }
    });
    if (needed_.empty()) return;
    for_each_access(instruction, [&](Access access, const Region& region) {
      if (access == Access::write && region.step == 0 && reused(role_.buffer(region.buffer)))
        needed_[static_cast<std::size_t>(region.buffer)].written(region.offset, region.offset + region.bytes);
    });
    for_each_access(instruction, [&](Access access, const Region& region) {
      const Buffer& buffer = role_.buffer(region.buffer);
      if (access != Access::write && reused(buffer))
        needed_[static_cast<std::size_t>(region.buffer)].read(
            region.offset, region.step == 0 ? region.offset + region.bytes : buffer.bytes);
    });
  }

  // What a loop touches and something outside it too lives through the loop.
  Lifetime through_loop(std::size_t id, Lifetime life) const {
    if (reused(role_.buffers[id])) return life;
    for (const Loop& loop : program_.loops) {
      const bool meets = life.first < loop.last && life.last >= loop.first,
                 inside = life.first >= loop.first && life.last < loop.last;
      if (meets && !inside) life = {std::min(life.first, loop.first), std::max(life.last, loop.last - 1)};
    }
    return life;
  }

  const Role& role_;
  const Program& program_;
  std::vector<Lifetime> earliest_;                       // of each buffer, of what has been seen
  std::vector<std::pair<std::size_t, Lifetime>> later_;  // of buffers that are used again and again
  std::vector<Needed> needed_;                           // empty: there are none of those
};

}  // namespace

Lives live_intervals(const Role& role, const Program& program) { return Backwards(role, program).run(); }

std::vector<Lifetime> lifetimes(const Role& role, const Program& program) {
  const Lives lives = live_intervals(role, program);
  std::vector<Lifetime> result;
  result.reserve(role.buffers.size());
  for (std::size_t id = 0; id < role.buffers.size(); ++id) {
    const std::span<const Lifetime> one = lives.of(static_cast<BufferId>(id));
    result.push_back(one.empty() ? Lifetime{} : Lifetime{one.front().first, one.back().last});
  }
  return result;
}

std::int64_t least_bytes(const Role& role) {
  std::int64_t persistent = 0;
  for (const Buffer& buffer : role.buffers)
    if (is_persistent(buffer)) persistent += aligned(buffer.bytes);
  std::int64_t most = persistent;
  for (std::size_t i = 0; i < role.programs.size(); ++i) {
    const Program& program = role.programs[i];
    const Lives lives = live_intervals(role, program);
    std::vector<BufferId> ids;
    const std::vector<Placed> items = items_of(role, static_cast<std::int32_t>(i), lives, ids);
    most = std::max(most, most_alive(items, persistent, program.instructions.size()));
  }
  return most;
}

std::int64_t most_bytes(const Plan& plan, Space space) {
  std::int64_t most = 0;
  for (const Role& role : plan.roles) most = std::max(most, role.bytes_in(space));
  return most;
}

bool plan_memory(Role& role, std::int64_t limit, Care care) {
  std::array<std::int64_t, kNumSpaces> persistent{};
  for (Buffer& buffer : role.buffers) {
    if (buffer.program >= 0) continue;
    std::int64_t& end = persistent[static_cast<std::size_t>(buffer.space)];
    buffer.offset = begin_of(buffer.space) + end;
    end += aligned(buffer.bytes);
  }
  role.persistent_bytes = persistent[static_cast<std::size_t>(Space::device)];
  role.host_bytes = persistent[static_cast<std::size_t>(Space::host)];
  role.disk_bytes = persistent[static_cast<std::size_t>(Space::disk)];
  role.total_bytes = role.persistent_bytes;
  for (std::size_t program = 0; program < role.programs.size(); ++program)
    role.total_bytes = std::max(role.total_bytes, place_program(role, static_cast<std::int32_t>(program), limit, care));
  return care == Care::little && std::ranges::any_of(role.programs, is_long);
}

namespace {

std::vector<std::int64_t> live_bytes(const Role& role, const Program& program, const Lives& lives) {
  std::vector<std::int64_t> change(program.instructions.size() + 1, 0);
  std::int64_t persistent = 0;
  for (std::size_t id = 0; id < role.buffers.size(); ++id) {
    if (role.buffers[id].program < 0) {
      if (is_persistent(role.buffers[id])) persistent += role.buffers[id].bytes;
      continue;
    }
    for (const Lifetime& life : lives.of(static_cast<BufferId>(id))) {
      change[static_cast<std::size_t>(life.first)] += role.buffers[id].bytes;
      change[static_cast<std::size_t>(life.last) + 1] -= role.buffers[id].bytes;
    }
  }
  std::vector<std::int64_t> live(program.instructions.size());
  for (std::size_t i = 0; i < live.size(); ++i) live[i] = persistent += change[i];
  return live;
}

}  // namespace

std::vector<std::int64_t> live_bytes(const Role& role, const Program& program) {
  return live_bytes(role, program, live_intervals(role, program));
}

MemoryReport report_memory(const Role& role) {
  MemoryReport report;
  report.peak_bytes = role.total_bytes;
  std::int64_t most = -1;
  const Program* at = nullptr;
  std::optional<Lives> lives;  // in that program
  for (const Program& program : role.programs) {
    Lives all = live_intervals(role, program);
    const std::vector<std::int64_t> live = live_bytes(role, program, all);
    const auto peak = std::max_element(live.begin(), live.end());
    report.by_program.push_back(peak == live.end() ? 0 : *peak);
    if (report.by_program.back() <= most || peak == live.end()) continue;
    most = *peak;
    at = &program;
    lives = std::move(all);
    report.instruction = static_cast<std::int32_t>(peak - live.begin());
  }
  if (at != nullptr) {
    report.program = at->kind;
    report.peak_at = std::string(name_of(at->kind)) + ": " +
                     print(role, at->instructions[static_cast<std::size_t>(report.instruction)].instruction);
  }
  std::int64_t sum = 0;
  for (std::size_t id = 0; id < role.buffers.size(); ++id) {
    const auto at_peak = [&](const Lifetime& life) {
      return life.first <= report.instruction && report.instruction <= life.last;
    };
    const bool alive =
        is_persistent(role.buffers[id]) ||
        (role.buffers[id].program >= 0 && lives && std::ranges::any_of(lives->of(static_cast<BufferId>(id)), at_peak));
    if (!alive) continue;
    report.by_category[static_cast<std::size_t>(role.buffers[id].category)] += role.buffers[id].bytes;
    sum += role.buffers[id].bytes;
  }
  report.by_category[static_cast<std::size_t>(Category::workspace)] += report.peak_bytes - sum;
  return report;
}

std::vector<MemoryReport> report_memory(const Plan& plan) {
  std::vector<MemoryReport> reports(plan.roles.size());
  for_each_index(reports.size(), [&](std::size_t i) { reports[i] = report_memory(plan.roles[i]); });
  return reports;
}

}  // namespace trainer
