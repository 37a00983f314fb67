// The list in three parts: what is before the loop stays, the loop is repeated, and what is behind it is moved on by
// all passes but one.
#include "engine/plan/loop.h"

#include <algorithm>
#include <utility>

namespace trainer {
namespace {

void move_on(std::int32_t& micro_batch, std::int64_t by) {
  if (micro_batch >= 0) micro_batch += static_cast<std::int32_t>(by);
}

StreamClock waits_in_pass(const Loop& loop, StreamClock after, std::int32_t pass) {
  for (std::int32_t& one : after.at) one = wait_in_pass(loop, one, pass);
  return after;
}

Program unrolled(const Role& role, const Program& program, std::int32_t passes) {
  if (!program.loops()) return program;
  const Loop& loop = program.loop;
  Program result{program.kind, {}};
  result.instructions.reserve(program.instructions.size() + static_cast<std::size_t>((passes - 1) * loop.size()));
  const auto listed = [&](std::int32_t first, std::int32_t last, std::int32_t pass) {
    for (std::int32_t i = first; i < last; ++i) {
      Issued& one = result.instructions.emplace_back(
          in_pass(role, loop, program.instructions[static_cast<std::size_t>(i)], pass));
      one.after = waits_in_pass(loop, one.after, pass);
    }
  };
  listed(0, loop.first, 0);
  for (std::int32_t pass = 0; pass < passes; ++pass) listed(loop.first, loop.last, pass);
  listed(loop.last, static_cast<std::int32_t>(program.instructions.size()), passes - 1);
  return result;
}

// What is alive only behind the loop is of later micro-batches too.
void renumber(const Role& role, const Program& program, std::int32_t passes, std::vector<Buffer>& buffers) {
  for (auto i = static_cast<std::size_t>(program.loop.last); program.loops() && i < program.instructions.size(); ++i)
    for_each_access(program.instructions[i].instruction, [&](Access, const Region& region) {
      Buffer& buffer = buffers[static_cast<std::size_t>(region.buffer)];
      if (buffer.stride > 0) return;
      buffer.micro_batch = role.buffer(region.buffer).micro_batch;
      move_on(buffer.micro_batch, static_cast<std::int64_t>(passes - 1) * program.loop.micro_batches);
    });
}

template <typename Count>
Role unrolled_by(const Role& role, const Count& passes_of) {
  Role result = role;
  for (Program& program : result.programs) {
    const std::int32_t passes = passes_of(program);
    renumber(role, program, passes, result.buffers);
    if (program.kind == ProgramKind::step)
      for (Unit& unit : result.units)
        for (Slot& slot : unit.slots)
          if (!slot.persistent) slot.region = region_after(role, slot.region, passes - 1);
    program = unrolled(role, program, passes);
  }
  return result;
}

template <typename... Passes>
Plan unrolled_plan(const Plan& plan, Passes... passes) {
  Plan result{plan.mesh, plan.drifts, {}};
  for (const Role& role : plan.roles) result.roles.push_back(unrolled(role, passes...));
  return result;
}

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
  if (!program.loops()) return ends;
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
  Issued one = listed;
  if (pass == 0) return one;
  const std::int64_t on = pass * loop.micro_batches;
  move_on(one.why.micro_batch, on);
  for_each_region(one.instruction, [&](Region& region) { region = region_after(role, region, pass); });
  if (auto* launch = std::get_if<Launch>(&one.instruction)) launch->origin.base += on * launch->origin_step;
  if (auto* exchange = std::get_if<Exchange>(&one.instruction)) {
    for (auto& send : exchange->sends) move_on(send.carried.micro_batch, on);
    for (auto& receive : exchange->receives) move_on(receive.carried.micro_batch, on);
  }
  return one;
}

Role unrolled(const Role& role) {
  return unrolled_by(role, [](const Program& program) { return program.loop.times; });
}
Role unrolled(const Role& role, std::int32_t passes) {
  return unrolled_by(role, [&](const Program& program) { return std::min(passes, program.loop.times); });
}
Plan unrolled(const Plan& plan) { return unrolled_plan(plan); }
Plan unrolled(const Plan& plan, std::int32_t passes) { return unrolled_plan(plan, passes); }

bool loops(const Plan& plan) {
  return std::any_of(plan.roles.begin(), plan.roles.end(), [](const Role& role) {
    return std::any_of(role.programs.begin(), role.programs.end(),
                       [](const Program& program) { return program.loops(); });
  });
}

}  // namespace trainer
