// Loops: what the passes over the loops of a program do. A program with loops lists a step of few micro-batches; a pass
// more is the same instructions for later micro-batches, in the next parts of rings. Code that shows every instruction
// uses the unrolled form; code that plans, proves, predicts or runs works on the list, whose length does not depend
// on the number of micro-batches.
#pragma once

#include <map>
#include <span>
#include <type_traits>
#include <variant>

#include "engine/plan/plan.h"

namespace trainer {

/// Calls visit(Region&) for every region of an instruction, in the order of its fields.
template <typename OneInstruction, typename Visit>
void for_each_region(OneInstruction& instruction, const Visit& visit) {
  std::visit(
      [&](auto& one) {
        using T = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<T, Launch>) {
          for (auto& operand : one.operands) std::visit([&](auto& access) { visit(access.region); }, operand);
          if (one.workspace.region.buffer >= 0) visit(one.workspace.region);
        } else if constexpr (std::is_same_v<T, Collective>) {
          visit(one.input.region);
          visit(one.output.region);
        } else if constexpr (std::is_same_v<T, Exchange>) {
          for (auto& send : one.sends) visit(send.region.region);
          for (auto& receive : one.receives) visit(receive.region.region);
        } else if constexpr (std::is_same_v<T, Move>) {
          visit(one.from.region);
          visit(one.to.region);
        } else {
          visit(one.region.region);
        }
      },
      instruction);
}

/// The region that a loop's instruction touches `passes` passes later. A region of more than one part stays.
Region region_after(const Role& role, const Region& region, std::int64_t passes);

/// Whether what lies there may be of `micro_batch`: a buffer is of one or of none, and part i of a ring of n of all
/// that are i modulo n.
bool may_hold(const Role& role, const Region& region, std::int32_t micro_batch);

/// A ring that a loop of the program goes around: a pass finds in another part what the pass before it found in one.
inline bool turns(const Buffer& buffer, std::int32_t program) {
  return buffer.program == program && buffer.stride > 0 && buffer.advance % buffer.parts() != 0;
}

/// Rings that turn, by the instruction that touches them last. Which part lies where then depends on the number of
/// passes: whoever takes the memory over waits for all parts.
std::multimap<std::int32_t, BufferId> ends_of_rings(const Role& role, const Program& program);

/// The parts of a ring that the list uses: of one where every micro-batch has its own, those of the list's
/// micro-batches.
inline std::int64_t listed_parts(const Buffer& ring, std::span<const Loop> loops) {
  const bool fewer = ring.own_parts && !loops.empty();
  return ring.parts() - (fewer ? static_cast<std::int64_t>(loops.front().times - 1) * ring.advance : 0);
}

/// By how many passes an instruction outside of loops is moved on that goes with that loop.
inline std::int32_t passes_behind(std::span<const Loop> loops, std::int32_t instruction, std::int32_t loop) {
  if (loop < 0 || static_cast<std::size_t>(loop) >= loops.size()) return 0;
  const Loop& one = loops[static_cast<std::size_t>(loop)];
  return instruction >= one.last ? one.times - 1 : 0;
}

/// The index that an instruction of the list has in the program written out, in a pass over its loop; outside of loops
/// the pass is 0.
inline std::int32_t number_of(std::span<const Loop> loops, std::int32_t instruction, std::int32_t pass) {
  std::int32_t number = instruction;
  for (const Loop& loop : loops)
    if (instruction >= loop.first) number += (loop.holds(instruction) ? pass : loop.times - 1) * loop.size();
  return number;
}

/// The same of what `after`, an entry of Issued::after, is for where `instruction` waits in a pass. A wait for the
/// round before a loop stands for that of the pass before each.
inline std::int32_t awaited(std::span<const Loop> loops, std::int32_t after, std::int32_t instruction,
                            std::int32_t pass) {
  std::int32_t number = after;
  for (const Loop& loop : loops)
    if (after >= loop.first - loop.size() && instruction >= loop.first)
      number += (loop.holds(instruction) ? pass : loop.times - 1) * loop.size();
  return number;
}

/// The instruction as a pass over the loop runs it, its waits as they are listed; pass 0 is what the program lists.
Issued in_pass(const Role& role, const Loop& loop, const Issued& listed, std::int64_t pass);

/// The same of any instruction of the program: outside of loops, moved on as what it goes with is.
Issued in_run(const Role& role, const Program& program, std::int32_t instruction, std::int64_t pass);

/// A role's program with loops of `passes` passes written out, or of as many as they have.
Program unrolled(const Role& role, const Program& program, std::int32_t passes);
/// The same of all programs. Micro-batches that buffers behind a loop belong to are numbered on.
Role unrolled(const Role& role);
Plan unrolled(const Plan& plan);
Plan unrolled(const Plan& plan, std::int32_t passes);

/// Whether any program of the plan has a loop.
bool loops(const Plan& plan);

}  // namespace trainer
