// The list part by part: a loop is repeated, and what comes behind it and goes with it is moved on by all passes but
// one.
#include "engine/plan/loop.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "engine/core/parallel.h"

namespace trainer {
namespace {

void move_on(std::int32_t& micro_batch, std::int64_t by) {
  if (micro_batch >= 0) micro_batch += static_cast<std::int32_t>(by);
}

// The instruction with what goes with loop l moved on by passes(l) passes of so many micro-batches each.
template <typename Passes, typename MicroBatches>
Issued moved(const Role& role, Issued one, const Passes& passes, const MicroBatches& micro_batches) {
  const auto move = [&](std::int32_t& micro_batch, std::int32_t loop) {
    move_on(micro_batch, passes(loop) * micro_batches(loop));
  };
  const std::int32_t mine = one.why.loop;
  move(one.why.micro_batch, mine);
  auto* exchange = std::get_if<Exchange>(&one.instruction);
  if (exchange == nullptr) {
    for_each_region(one.instruction, [&](Region& region) { region = region_after(role, region, passes(mine)); });
    if (auto* launch = std::get_if<Launch>(&one.instruction))
      launch->origin.base += passes(mine) * micro_batches(mine) * launch->origin_step;
    return one;
  }
  const auto move_part = [&](auto& part) {
    part.region.region = region_after(role, part.region.region, passes(part.loop));
    move(part.carried.micro_batch, part.loop);
  };
  for (auto& send : exchange->sends) move_part(send);
  for (auto& receive : exchange->receives) move_part(receive);
  return one;
}

// In a program without loops there is nothing to go with.
void forget_loops(Issued& issued) {
  issued.why.loop = 0;
  auto* exchange = std::get_if<Exchange>(&issued.instruction);
  if (exchange == nullptr) return;
  for (auto& send : exchange->sends) send.loop = 0;
  for (auto& receive : exchange->receives) receive.loop = 0;
}

// A program's loops with so many passes over each.
std::vector<Loop> shortened(std::vector<Loop> loops, std::int32_t passes) {
  for (Loop& loop : loops) loop.times = passes;
  return loops;
}

// An instruction of a program with these loops, which need not be as many passes as the program's own.
Issued in_run_of(const Role& role, const Issued& listed, std::span<const Loop> loops, std::int32_t instruction,
                 std::int64_t pass) {
  for (const Loop& loop : loops)
    if (loop.holds(instruction)) return in_pass(role, loop, listed, pass);
  if (loops.empty() || instruction < loops.front().last) return listed;
  const auto behind = [&](std::int32_t loop) {
    return static_cast<std::int64_t>(passes_behind(loops, instruction, loop));
  };
  return moved(role, listed, behind, [&](std::int32_t) { return loops.front().micro_batches; });
}

// What is alive only behind the loop is of later micro-batches too.
void renumber(const Role& role, const Program& program, std::int32_t passes, std::vector<Buffer>& buffers) {
  if (!program.repeats()) return;
  const std::vector<Loop> loops = shortened(program.loops, passes);
  const auto number = [&](const Region& region, std::int32_t i, std::int32_t loop) {
    Buffer& buffer = buffers[static_cast<std::size_t>(region.buffer)];
    const std::int32_t behind = passes_behind(loops, i, loop);
    if (buffer.stride > 0 || behind == 0) return;
    buffer.micro_batch = role.buffer(region.buffer).micro_batch;
    move_on(buffer.micro_batch,
            static_cast<std::int64_t>(behind) * loops[static_cast<std::size_t>(loop)].micro_batches);
  };
  for (std::int32_t i = loops.front().last; i < static_cast<std::int32_t>(program.instructions.size()); ++i) {
    const Issued& issued = program.instructions[static_cast<std::size_t>(i)];
    if (const auto* exchange = std::get_if<Exchange>(&issued.instruction)) {
      for (const auto& send : exchange->sends) number(send.region.region, i, send.loop);
      for (const auto& receive : exchange->receives) number(receive.region.region, i, receive.loop);
    } else {
      for_each_access(issued.instruction, [&](Access, const Region& region) { number(region, i, issued.why.loop); });
    }
  }
}

std::int32_t times_of(const Program& program) { return program.repeats() ? program.loops.front().times : 1; }

Role unrolled_role(const Role& role, std::int32_t most_passes) {
  Role result = role;
  for (Program& program : result.programs) {
    const std::int32_t passes = std::min(most_passes, times_of(program));
    renumber(role, program, passes, result.buffers);
    if (program.kind == ProgramKind::step)
      for (Unit& unit : result.units)
        for (Slot& slot : unit.slots)
          if (!slot.persistent) slot.region = region_after(role, slot.region, passes - 1);
    program = unrolled(role, program, passes);
  }
  return result;
}

constexpr std::int32_t kAll = std::numeric_limits<std::int32_t>::max();

}  // namespace

Region region_after(const Role& role, const Region& region, std::int64_t passes) {
  if (region.buffer < 0 || static_cast<std::size_t>(region.buffer) >= role.buffers.size()) return region;
  const Buffer& buffer = role.buffer(region.buffer);
  if (passes == 0 || buffer.stride == 0 || region.bytes > buffer.stride) return region;
  const std::int64_t part = region.offset / buffer.stride;
  Region moved = region;
  moved.offset += ((part + passes * buffer.advance) % buffer.parts() - part) * buffer.stride;
  return moved;
}

bool may_hold(const Role& role, const Region& region, std::int32_t micro_batch) {
  const Buffer& buffer = role.buffer(region.buffer);
  if (buffer.micro_batch < 0 || micro_batch < 0) return true;
  return buffer.stride == 0 ? buffer.micro_batch == micro_batch
                            : region.offset / buffer.stride == micro_batch % buffer.parts();
}

std::multimap<std::int32_t, BufferId> ends_of_rings(const Role& role, const Program& program) {
  std::multimap<std::int32_t, BufferId> ends;
  if (!program.repeats()) return ends;
  const auto index = static_cast<std::int32_t>(&program - role.programs.data());
  std::map<BufferId, std::int32_t> last;
  for (std::size_t i = 0; i < program.instructions.size(); ++i)
    for_each_access(program.instructions[i].instruction, [&](Access, const Region& region) {
      const bool there = region.buffer >= 0 && static_cast<std::size_t>(region.buffer) < role.buffers.size();
      if (there && turns(role.buffer(region.buffer), index)) last[region.buffer] = static_cast<std::int32_t>(i);
    });
  for (const auto& [ring, at] : last) ends.emplace(at, ring);
  return ends;
}

Issued in_pass(const Role& role, const Loop& loop, const Issued& listed, std::int64_t pass) {
  if (pass == 0) return listed;
  return moved(
      role, listed, [&](std::int32_t) { return pass; }, [&](std::int32_t) { return loop.micro_batches; });
}

Issued in_run(const Role& role, const Program& program, std::int32_t instruction, std::int64_t pass) {
  return in_run_of(role, program.instructions[static_cast<std::size_t>(instruction)], program.loops, instruction, pass);
}

Program unrolled(const Role& role, const Program& program, std::int32_t most_passes) {
  if (!program.repeats()) return program;
  const std::int32_t passes = std::min(most_passes, program.loops.front().times);
  const std::vector<Loop> loops = shortened(program.loops, passes);
  Program result{program.kind, {}};
  const auto list = [&](std::int32_t first, std::int32_t last, std::int32_t pass) {
    for (std::int32_t i = first; i < last; ++i) {
      const Issued& listed = program.instructions[static_cast<std::size_t>(i)];
      Issued& one = result.instructions.emplace_back(in_run_of(role, listed, loops, i, pass));
      for (std::int32_t& after : one.after.at) after = awaited(loops, after, i, pass);
      forget_loops(one);
    }
  };
  std::size_t length = program.instructions.size();
  for (const Loop& loop : loops) length += static_cast<std::size_t>(passes - 1) * static_cast<std::size_t>(loop.size());
  result.instructions.reserve(length);
  std::int32_t at = 0;
  for (const Loop& loop : loops) {
    list(at, loop.first, 0);
    for (std::int32_t pass = 0; pass < passes; ++pass) list(loop.first, loop.last, pass);
    at = loop.last;
  }
  list(at, static_cast<std::int32_t>(program.instructions.size()), 0);
  return result;
}

Role unrolled(const Role& role) { return unrolled_role(role, kAll); }
Plan unrolled(const Plan& plan) { return unrolled(plan, kAll); }
Plan unrolled(const Plan& plan, std::int32_t passes) {
  Plan result{plan.mesh, plan.drifts, std::vector<Role>(plan.roles.size())};
  for_each_index(plan.roles.size(), [&](std::size_t i) { result.roles[i] = unrolled_role(plan.roles[i], passes); });
  return result;
}

bool loops(const Plan& plan) {
  return std::any_of(plan.roles.begin(), plan.roles.end(), [](const Role& role) {
    return std::any_of(role.programs.begin(), role.programs.end(),
                       [](const Program& program) { return program.repeats(); });
  });
}

}  // namespace trainer
