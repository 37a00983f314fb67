// The document, section by section.
#include "engine/report/planned.h"

#include <nlohmann/json.hpp>

#include "engine/plan/loop.h"
#include "engine/plan/traffic.h"
#include "engine/report/choice.h"
#include "engine/report/lifecycle.h"
#include "engine/report/plan_report.h"
#include "engine/report/quantized.h"

namespace trainer::report {

namespace {

// What bf16 costs on a processor without instructions for it, null elsewhere.
Json without_bf16_json(const std::optional<WithoutBf16>& costs) {
  if (!costs) return nullptr;
  return {{"instruction_set", costs->isa}, {"peak_bytes_f32", costs->f32_bytes}, {"step_ms_f32", costs->f32_us * 1e-3}};
}

Json quantized_json(const CompiledJob& compiled) {
  const std::optional<QuantizedCost> cost = quantized_of(compiled);
  if (!cost) return nullptr;
  return {{"as", name_of(cost->as)},
          {"matrices", cost->matrices},
          {"elements", cost->elements},
          {"bytes", cost->bytes},
          {"bytes_per_element", cost->bytes_per_element()}};
}

}  // namespace

Json plan_json(const Planned& one) {
  const auto& [loaded, compiled, predicted, advice, without_bf16] = one;
  const StageTraffic traffic = traffic_by_stage(compiled.plan),
                     average = traffic_by_stage(compiled.plan, ProgramKind::average);
  Json parts = Json::array();
  for (int part = 0; compiled.strategy.data.parts > 1 && part < compiled.strategy.data.parts; ++part) {
    const StageTraffic one = traffic_by_stage(compiled.plan, ProgramKind::average, part);
    parts.push_back({{"after_step", compiled.strategy.data.step_of_part(part)},
                     {"communication", communication_json(one.stages[one.most])}});
  }
  Json by_stage = Json::array(), programs = Json::object();
  for (const std::vector<Traffic>& stage : traffic.stages) by_stage.push_back(communication_json(stage));
  for (const Program& program : compiled.plan.roles.front().programs)
    programs[std::string(name_of(program.kind))] =
        programs.value(std::string(name_of(program.kind)), std::int64_t{0}) + program.length();
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
          {"batch",
           {{"global", compiled.batch.global},
            {"micro", compiled.batch.micro},
            {"micro_batches", compiled.batch.micro_batches}}},
          {"parameters", compiled.num_parameters},
          {"trained_parameters", compiled.num_trained},
          {"active_parameters", compiled.num_active},
          {"optimizers", optimizers_json(compiled)},
          {"states", states_json(compiled)},
          {"quantized", quantized_json(compiled)},
          {"precision",
           {{"compute", name_of(loaded.job.precision.compute)},
            {"matmul", compiled.fp8 == Fp8Scales::none ? "none" : "fp8"},
            {"fp8_scales", name_of(compiled.fp8)}}},
          {"flops_per_step", compiled.flops_per_step},
          {"model_flops_per_step", compiled.model_flops_per_step},
          {"predicted", predicted_json(predicted)},
          {"advice", suggestions_json(advice)},
          {"without_bf16", without_bf16_json(without_bf16)},
          {"instructions", programs},
          {"memory", memory},
          {"checkpoint", checkpoint_json(loaded, compiled)},
          {"communication", communication_json(traffic.stages[traffic.most])},
          {"communication_by_stage", by_stage},
          {"communication_of_average", communication_json(average.stages[average.most])},
          {"communication_of_parts", parts},
          {"units", units_json(compiled.plan)},
          {"pipeline", pipeline_json(compiled)}};
}

Planned written_out(const Planned& one) {
  if (!loops(one.compiled.plan)) return one;
  Planned full = one;
  full.compiled = trainer::written_out(one.compiled);
  full.predicted.times = cost::predict(full.compiled.plan, cost::CostModel(one.predicted.cluster));
  return full;
}

}  // namespace trainer::report
