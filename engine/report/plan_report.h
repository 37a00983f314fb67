// What plan and run say of a compiled job: facts read off the plan, for people and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/plan/traffic.h"
#include "engine/report/json.h"

namespace trainer::report {

/// The strategy in the explicit form of a job file, nothing left to `auto`: `strategy:` takes it back and gives the
/// same plan.
Json strategy_json(const CompiledJob& compiled);
/// Axis name to size, all axes.
Json mesh_json(const Mesh& mesh);

/// What a rank of each stage sends in a run of `program`, and the stage that sends most.
struct StageTraffic {
  std::vector<std::vector<Traffic>> stages;
  std::size_t most = 0;
};
StageTraffic traffic_by_stage(const Plan& plan, ProgramKind program = ProgramKind::step, int part = 0);

/// What a strategy that averages sends beside a step or in its place.
struct AverageTraffic {
  ProgramKind program;
  int part = 0;
  StageTraffic traffic;
};
/// Of each part of the model; empty where ranks do not train apart.
std::vector<AverageTraffic> traffic_of_averages(const Plan& plan);

/// The stage whose ranks need most memory, and its report.
std::size_t fullest_stage(const CompiledJob& compiled);
const MemoryReport& fullest(const CompiledJob& compiled);
/// Of the fullest rank, and under `stages` of each.
Json memory_json(const CompiledJob& compiled);
Json communication_json(const std::vector<Traffic>& traffic);
Json units_json(const Plan& plan);
/// Schedule, chunks and bubble (in slots: a forward, an input part and a weight part take one each); null where there
/// is one stage.
Json pipeline_json(const CompiledJob& compiled);

/// An instruction in a few words: "linear h.0.attn.c_attn mb0", "all_reduce unit.0".
std::string title_of(const Role& role, const Instruction& instruction);
/// With the micro-batch of a pass.
std::string title_of(const Role& role, const Issued& issued);

/// The buffers of `program`, persistent ones aside, that are alive at an instruction, the largest first.
std::vector<BufferId> alive_at(const Role& role, const Program& program, std::int32_t instruction);

/// "muon (lr 0.02) of 24,576 parameters, adamw (lr 0.001) of 9,600": which optimizer updates how many.
std::string optimizers_line(const CompiledJob& compiled);
Json optimizers_json(const CompiledJob& compiled);

/// A state of the optimizer on the rank that needs the most memory.
struct StateCost {
  std::string name;
  std::string format;  ///< "f32", "bf16", "int8"
  std::int64_t bytes = 0;
  std::int64_t bytes_in_f32 = 0;
};
std::vector<StateCost> states_of(const CompiledJob& compiled);
Json states_json(const CompiledJob& compiled);
/// "exp_avg, exp_avg_sq in int8; 1.6 MiB a rank, in f32 they would be 6.2 MiB".
std::string states_line(const std::vector<StateCost>& states);

/// "parameters 12.3 MiB, gradients …": what is there at the peak, the largest first.
std::string memory_line(const CompiledJob& compiled);
/// "ddp over 4 ranks", "fsdp full_shard over 2 ranks × tensor 2 × pipeline 4 (1f1b)"; of one rank, which shares
/// nothing, its name alone.
std::string strategy_line(const CompiledJob& compiled);
/// "16 samples a step: 4 ranks × 2 micro-batches × 2 samples".
std::string batch_line(const BatchShape& batch);

}  // namespace trainer::report
