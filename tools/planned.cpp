// From a job to what plan says of it.
#include "tools/planned.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "engine/compile/advise.h"
#include "engine/plan/traffic.h"
#include "engine/train/ranks.h"
#include "tools/choice_text.h"
#include "tools/lifecycle.h"
#include "tools/machine.h"
#include "tools/plan_report.h"

namespace trainer::tools {

namespace {

// What bf16 costs on a processor without instructions for it, null elsewhere.
Json without_bf16_json(const LoadedJob& loaded, const CompiledJob& compiled) {
  const auto costs = without_bf16(loaded, compiled);
  if (!costs) return nullptr;
  return {{"instruction_set", costs->isa}, {"peak_bytes_f32", costs->f32_bytes}, {"step_ms_f32", costs->f32_us * 1e-3}};
}

}  // namespace

Planned planned(LoadedJob loaded) {
  Machine machine(loaded, ranks_per_node(loaded.job));
  const Hardware hardware = machine.timing();
  CompiledJob compiled = compile(loaded, hardware, Purpose::train);
  PredictedStep predicted = predict_here(loaded, compiled);
  std::vector<Suggestion> advice = advise(loaded, hardware, compiled, predicted.times.step_us);
  return {std::move(loaded), std::move(compiled), std::move(predicted), std::move(advice)};
}

Json plan_json(const Planned& one) {
  const auto& [loaded, compiled, predicted, advice] = one;
  const StageTraffic traffic = traffic_by_stage(compiled.plan), average = traffic_by_stage(compiled.plan, ProgramKind::average);
  Json by_stage = Json::array(), programs = Json::object();
  for (const std::vector<Traffic>& stage : traffic.stages) by_stage.push_back(communication_json(stage));
  for (const Program& program : compiled.plan.roles.front().programs) programs[std::string(name_of(program.kind))] = program.instructions.size();
  Json memory = memory_json(compiled);
  memory["lifecycle"] = lifecycle_json(lifecycle_of(loaded, compiled));
  return {{"hash", hash_of(compiled.plan)},
          {"name", loaded.job.name},
          {"strategy", strategy_json(compiled)},
          {"why", compiled.strategy_why},
          {"activation_checkpointing", recompute_json(compiled.recompute)},
          {"alternatives", alternatives_json(compiled)},
          {"would_fit", suggestions_json(compiled.would_fit)},
          {"mesh", mesh_json(compiled.plan.mesh)},
          {"world_size", compiled.plan.mesh.world_size()},
          {"batch", {{"global", compiled.batch.global}, {"micro", compiled.batch.micro}, {"micro_batches", compiled.batch.micro_batches}}},
          {"parameters", compiled.num_parameters},
          {"trained_parameters", compiled.num_trained},
          {"optimizers", optimizers_json(compiled)},
          {"states", states_json(compiled)},
          {"flops_per_step", compiled.flops_per_step},
          {"model_flops_per_step", compiled.model_flops_per_step},
          {"predicted", predicted_json(predicted)},
          {"advice", suggestions_json(advice)},
          {"without_bf16", without_bf16_json(loaded, compiled)},
          {"instructions", programs},
          {"memory", memory},
          {"communication", communication_json(traffic.stages[traffic.most])},
          {"communication_by_stage", by_stage},
          {"communication_of_average", communication_json(average.stages[average.most])},
          {"units", units_json(compiled.plan)},
          {"pipeline", pipeline_json(compiled)}};
}

int tell_fit(const Planned& one) {
  if (one.compiled.fits) return kDone;
  say("{}\n", does_not_fit(one.loaded, one.compiled).str());
  return kBadJob;
}

}  // namespace trainer::tools
