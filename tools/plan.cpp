// trainer plan: what a step will do, before anything is allocated.
#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/plan/traffic.h"
#include "tools/choice_text.h"
#include "tools/command.h"
#include "tools/lifecycle.h"
#include "tools/machine.h"
#include "tools/plan_difference.h"
#include "tools/plan_page.h"
#include "tools/plan_report.h"
#include "tools/plan_text.h"
#include "tools/prediction.h"
#include "tools/trace.h"

namespace trainer::tools {
namespace {

struct Arguments : JobArguments {
  bool instructions = false, effective = false;
  std::string html, trace, second;
};

// What bf16 costs on a processor without instructions for it, null elsewhere.
Json without_bf16_json(const LoadedJob& loaded, const CompiledJob& compiled) {
  const auto costs = without_bf16(loaded, compiled);
  if (!costs) return nullptr;
  return {{"instruction_set", costs->isa}, {"peak_bytes_f32", costs->f32_bytes}, {"step_ms_f32", costs->f32_us * 1e-3}};
}

Json plan_json(const LoadedJob& loaded, const CompiledJob& compiled, const PredictedStep& predicted) {
  const StageTraffic traffic = traffic_by_stage(compiled.plan), average = traffic_by_stage(compiled.plan, "average");
  Json by_stage = Json::array(), programs = Json::object();
  for (const std::vector<Traffic>& stage : traffic.stages) by_stage.push_back(communication_json(stage));
  for (const Program& program : compiled.plan.roles.front().programs) programs[program.name] = program.instructions.size();
  Json memory = memory_json(compiled);
  memory["lifecycle"] = lifecycle_json(lifecycle_of(loaded, compiled));
  return {{"hash", hash_of(compiled.plan)},
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
          {"without_bf16", without_bf16_json(loaded, compiled)},
          {"instructions", programs},
          {"memory", memory},
          {"communication", communication_json(traffic.stages[traffic.most])},
          {"communication_by_stage", by_stage},
          {"communication_of_average", communication_json(average.stages[average.most])},
          {"units", units_json(compiled.plan)},
          {"pipeline", pipeline_json(compiled)}};
}

void tell(const Arguments& arguments, const LoadedJob& loaded, const CompiledJob& compiled) {
  const PredictedStep predicted = predict_here(loaded, compiled);
  if (!arguments.trace.empty()) {
    TraceWriter trace(arguments.trace);
    write_predicted_trace(trace, compiled.plan, predicted.times);
  }
  if (!arguments.html.empty()) {
    write_page(arguments.html, plan_page(loaded, compiled, predicted));
    say("{}: the plan as a page\n", arguments.html);
  }
  if (arguments.json)
    put_document(plan_json(loaded, compiled, predicted));
  else
    put_plan(loaded, compiled, predicted);
}

int tell_fit(const LoadedJob& loaded, const CompiledJob& compiled) {
  if (compiled.fits) return kDone;
  say("{}\n", does_not_fit(loaded, compiled).str());
  return kBadJob;
}

int compare(const Arguments& arguments) {
  JobArguments second = arguments;
  second.path = arguments.second;
  const std::array loaded{arguments.load(), second.load()};
  std::vector<CompiledJob> compiled;
  std::vector<PlannedJob> jobs;
  for (const LoadedJob& one : loaded) {
    compiled.push_back(plan_here(one, Purpose::train));
    jobs.push_back({&one, strategy_line(compiled.back()), plan_json(one, compiled.back(), predict_here(one, compiled.back()))});
  }
  if (arguments.json)
    put_document(comparison_json(jobs[0], jobs[1]));
  else
    put_comparison(jobs[0], jobs[1]);
  return std::max(tell_fit(loaded[0], compiled[0]), tell_fit(loaded[1], compiled[1]));
}

// A word without "=" that names a file is the second job.
void find_second(Arguments& arguments) {
  const auto is_job = [](const std::string& word) { return word.find('=') == std::string::npos && std::filesystem::exists(word); };
  const auto found = std::find_if(arguments.overrides.begin(), arguments.overrides.end(), is_job);
  if (found == arguments.overrides.end()) return;
  arguments.second = *found;
  arguments.overrides.erase(found);
  if (std::any_of(arguments.overrides.begin(), arguments.overrides.end(), is_job)) throw UsageError("plan compares two jobs, and more are named");
  if (arguments.instructions || arguments.effective || !arguments.html.empty() || !arguments.trace.empty())
    throw UsageError("of two jobs plan shows the comparison, as text or with --json");
}

int plan(Arguments& arguments) {
  find_second(arguments);
  if (!arguments.second.empty()) return compare(arguments);
  const LoadedJob loaded = arguments.load();
  if (arguments.effective) return put("{}", effective_job(loaded)), kDone;
  const CompiledJob compiled = plan_here(loaded, Purpose::train);
  if (arguments.instructions)
    put("{}", print(compiled.plan));
  else
    tell(arguments, loaded, compiled);
  return tell_fit(loaded, compiled);
}

}  // namespace

void add_plan(CommandLine& app, Work& work) {
  Subcommand* command = app.add_subcommand("plan", "shows what a step will do: strategy, memory, communication, every instruction");
  auto arguments = std::make_shared<Arguments>();
  arguments->add_to(*command);
  command->get_option("OVERRIDES")->description("key.path=value: replaces what the file says. A second JOB: the two are compared, line by line, with the same overrides");
  Option* instructions =
      command->add_flag("--instructions", arguments->instructions, "the whole plan as text: buffers, kernels, every instruction");
  Option* effective =
      command->add_flag("--effective", arguments->effective, "the job with every default filled in and where each value came from");
  Option* trace = command->add_option("--trace", arguments->trace, "the predicted step of a rank of each stage, as a file for Perfetto");
  trace->type_name("FILE")->excludes(instructions)->excludes(effective);
  Option* html = command->add_option("--html", arguments->html, "the plan as a page for a browser: memory and streams over the step, and all tables");
  html->type_name("FILE")->excludes(instructions)->excludes(effective);
  Option* json = command->get_option("--json");
  instructions->excludes(json);
  effective->excludes(json)->excludes(instructions);
  command->footer(
      "Examples:\n"
      "  trainer plan configs/gpt2-124m.yaml\n"
      "  trainer plan job.yaml train.batch.micro=2 activation_checkpointing.mode=full --json\n"
      "  trainer plan job.yaml --html plan.html\n"
      "  trainer plan job.yaml other.yaml cluster.devices_per_node=8\n"
      "  trainer plan job.yaml --effective >effective.yaml\n"
      "\n"
      "Needs no data and allocates nothing. A job that does not fit into memory is shown all the same and exits 78.\n");
  command->callback([arguments, &work] { work = [arguments] { return plan(*arguments); }; });
}

}  // namespace trainer::tools
