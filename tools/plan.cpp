// trainer plan: what a step will do, before anything is allocated.
#include "engine/core/error.h"
#include "engine/plan/traffic.h"
#include "tools/choice_text.h"
#include "tools/command.h"
#include "tools/plan_report.h"
#include "tools/plan_text.h"
#include "tools/prediction.h"
#include "tools/trace.h"

namespace trainer::tools {
namespace {

struct Arguments : JobArguments {
  bool instructions = false, effective = false;
  std::string trace;
};

void put_json(const LoadedJob& loaded, const CompiledJob& compiled, const PredictedStep& predicted) {
  const StageTraffic traffic = traffic_by_stage(compiled.plan), average = traffic_by_stage(compiled.plan, "average");
  Json by_stage = Json::array(), programs = Json::object();
  for (const std::vector<Traffic>& stage : traffic.stages) by_stage.push_back(communication_json(stage));
  for (const Program& program : compiled.plan.roles.front().programs) programs[program.name] = program.instructions.size();
  put_document(
      Json{{"hash", hash_of(compiled.plan)},
           {"name", loaded.job.name},
           {"strategy", strategy_json(compiled)},
           {"why", compiled.strategy_why},
           {"activation_checkpointing", recompute_json(compiled.recompute)},
           {"alternatives", alternatives_json(compiled)},
           {"would_fit", compiled.would_fit},
           {"mesh", mesh_json(compiled.plan.mesh)},
           {"world_size", compiled.plan.mesh.world_size()},
           {"batch", {{"global", compiled.batch.global}, {"micro", compiled.batch.micro}, {"micro_batches", compiled.batch.micro_batches}}},
           {"parameters", compiled.num_parameters},
           {"flops_per_step", compiled.flops_per_step},
           {"model_flops_per_step", compiled.model_flops_per_step},
           {"predicted", predicted_json(predicted)},
           {"instructions", programs},
           {"memory", memory_json(compiled)},
           {"communication", communication_json(traffic.stages[traffic.most])},
           {"communication_by_stage", by_stage},
           {"communication_of_average", communication_json(average.stages[average.most])},
           {"units", units_json(compiled.plan)},
           {"pipeline", pipeline_json(compiled)}});
}

void tell(const Arguments& arguments, const LoadedJob& loaded, const CompiledJob& compiled) {
  const PredictedStep predicted = predict_here(loaded, compiled);
  if (!arguments.trace.empty()) {
    TraceWriter trace(arguments.trace);
    write_predicted_trace(trace, compiled.plan, predicted.times);
  }
  if (arguments.json)
    put_json(loaded, compiled, predicted);
  else
    put_plan(loaded, compiled, predicted);
}

int plan(const Arguments& arguments) {
  const LoadedJob loaded = arguments.load();
  if (arguments.effective) return put("{}", effective_job(loaded)), kDone;
  const CompiledJob compiled = plan_here(loaded, Purpose::train);
  if (arguments.instructions)
    put("{}", print(compiled.plan));
  else
    tell(arguments, loaded, compiled);
  if (compiled.fits) return kDone;
  say("{}\n", does_not_fit(loaded, compiled).str());
  return kBadJob;
}

}  // namespace

void add_plan(CLI::App& app, Work& work) {
  CLI::App* command = app.add_subcommand("plan", "shows what a step will do: strategy, memory, communication, every instruction");
  auto arguments = std::make_shared<Arguments>();
  arguments->add_to(*command);
  CLI::Option* instructions =
      command->add_flag("--instructions", arguments->instructions, "the whole plan as text: buffers, kernels, every instruction");
  CLI::Option* effective =
      command->add_flag("--effective", arguments->effective, "the job with every default filled in and where each value came from");
  CLI::Option* trace = command->add_option("--trace", arguments->trace, "the predicted step of a rank of each stage, as a file for Perfetto");
  trace->type_name("FILE")->excludes(instructions)->excludes(effective);
  CLI::Option* json = command->get_option("--json");
  instructions->excludes(json);
  effective->excludes(json)->excludes(instructions);
  command->footer(
      "Examples:\n"
      "  trainer plan configs/gpt2-124m.yaml\n"
      "  trainer plan job.yaml train.batch.micro=2 activation_checkpointing.mode=full --json\n"
      "  trainer plan job.yaml --effective >effective.yaml\n"
      "\n"
      "Needs no data and allocates nothing. A job that does not fit into memory is shown all the same and exits 78.\n");
  command->callback([arguments, &work] { work = [arguments] { return plan(*arguments); }; });
}

}  // namespace trainer::tools
