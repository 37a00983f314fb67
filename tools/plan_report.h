// What plan and run say of a compiled job: facts read off the plan, for people and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/command.h"

namespace trainer::tools {

/// The strategy in the explicit form of a job file: `strategy:` takes it back.
Json strategy_json(const Job& job, const CompiledJob& compiled);
/// Axis name to size, all axes.
Json mesh_json(const Mesh& mesh);

/// The report of the role that needs most memory.
const MemoryReport& fullest(const CompiledJob& compiled);
Json memory_json(const CompiledJob& compiled);

/// An instruction in a few words: "linear h.0.attn.c_attn mb0", "all_reduce unit.0".
std::string title_of(const Role& role, const Instruction& instruction);

/// The buffers of `program`, persistent ones aside, that are alive at an instruction, the largest first.
std::vector<BufferId> alive_at(const Role& role, const Program& program, std::int32_t instruction);

/// "parameters 12.3 MiB, gradients …": what is there at the peak, the largest first.
std::string memory_line(const CompiledJob& compiled);
/// "ddp over 4 ranks"; of one rank, whose strategy shares nothing, its name alone.
std::string strategy_line(const CompiledJob& compiled);
/// "16 samples a step: 4 ranks × 2 micro-batches × 2 samples".
std::string batch_line(const BatchShape& batch);

}  // namespace trainer::tools
