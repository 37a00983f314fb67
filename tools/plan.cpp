// trainer plan: what a step will do, before anything is allocated.
#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/compile/fit.h"
#include "engine/core/error.h"
#include "engine/report/difference.h"
#include "engine/report/page/page.h"
#include "engine/report/plan_report.h"
#include "engine/report/plan_text.h"
#include "engine/report/trace.h"
#include "tools/command.h"
#include "tools/page_file.h"
#include "tools/plan_sweep.h"
#include "tools/planned.h"

namespace trainer::tools {
namespace {

struct PlanArguments : JobArguments {
  bool instructions = false, effective = false;
  std::string html, trace, second;
  std::vector<std::string> sweeps;
};

void tell(const PlanArguments& arguments, const report::Planned& one) {
  if (!arguments.trace.empty() || !arguments.html.empty()) {
    const report::Planned full = written_out(one);
    if (!arguments.trace.empty()) {
      TraceWriter trace(arguments.trace);
      report::write_predicted_trace(trace, full.compiled.plan, full.predicted.times);
    }
    if (!arguments.html.empty()) {
      write_page(arguments.html, report::plan_page(full.loaded, full.compiled, full.predicted));
      say("{}: the plan as a page\n", arguments.html);
    }
  }
  if (arguments.json)
    put_document(report::plan_json(one));
  else
    put("{}", report::plan_text(one));
}

int compare(const PlanArguments& arguments) {
  JobArguments second = arguments;
  second.path = arguments.second;
  const std::array both{planned(arguments.load()), planned(second.load())};
  std::vector<report::PlannedJob> jobs;
  for (const report::Planned& one : both)
    jobs.push_back({&one.loaded, report::strategy_line(one.compiled), report::plan_json(one)});
  if (arguments.json)
    put_document(report::comparison_json(jobs[0], jobs[1]));
  else
    put("{}", report::comparison_text(jobs[0], jobs[1]));
  return std::max(tell_fit(both[0]), tell_fit(both[1]));
}

// A word without "=" that names a file is the second job.
void find_second(PlanArguments& arguments) {
  const auto is_job = [](const std::string& word) {
    return word.find('=') == std::string::npos && std::filesystem::exists(word);
  };
  const auto found = std::find_if(arguments.overrides.begin(), arguments.overrides.end(), is_job);
  if (found == arguments.overrides.end()) return;
  arguments.second = *found;
  arguments.overrides.erase(found);
  if (std::any_of(arguments.overrides.begin(), arguments.overrides.end(), is_job))
    throw UsageError("plan compares two jobs, and more are named");
  if (arguments.instructions || arguments.effective || !arguments.html.empty() || !arguments.trace.empty() ||
      !arguments.sweeps.empty())
    throw UsageError("of two jobs plan shows the comparison, as text or with --json");
}

int plan(PlanArguments& arguments) {
  find_second(arguments);
  if (!arguments.sweeps.empty()) return sweep(arguments, arguments.sweeps);
  if (!arguments.second.empty()) return compare(arguments);
  LoadedJob loaded = arguments.load();
  if (arguments.effective) return put("{}", effective_job(loaded)), kDone;
  if (arguments.instructions) {
    const CompiledJob compiled = plan_here(loaded, Purpose::train);
    put("{}", print(compiled.plan));
    if (compiled.fits) return kDone;
    say("{}\n", does_not_fit(loaded, compiled).str());
    return kBadJob;
  }
  const report::Planned one = planned(std::move(loaded));
  tell(arguments, one);
  return tell_fit(one);
}

}  // namespace

void add_plan(CommandLine& app, Work& work) {
  Subcommand* command =
      app.add_subcommand("plan", "shows what a step will do: strategy, memory, communication, every instruction");
  auto arguments = std::make_shared<PlanArguments>();
  arguments->add_to(*command);
  command->get_option("OVERRIDES")
      ->description(
          "key.path=value: replaces what the file says. A second JOB: the two are compared, line by line, with the "
          "same overrides");
  Option* instructions = command->add_flag("--instructions", arguments->instructions,
                                           "the whole plan as text: buffers, kernels, every instruction");
  Option* effective = command->add_flag("--effective", arguments->effective,
                                        "the job with every default filled in and where each value came from");
  Option* trace = command->add_option("--trace", arguments->trace,
                                      "the predicted step of a rank of each stage, as a file for Perfetto");
  trace->type_name("FILE")->excludes(instructions)->excludes(effective);
  Option* html = command->add_option(
      "--html", arguments->html, "the plan as a page for a browser: memory and streams over the step, and all tables");
  html->type_name("FILE")->excludes(instructions)->excludes(effective);
  Option* sweep = command->add_option(
      "--sweep", arguments->sweeps,
      "plans the job with each value of a key, and shows them as rows of a table. Several: all combinations");
  sweep->type_name("KEY=VALUE,…")
      ->one_value()
      ->excludes(instructions)
      ->excludes(effective)
      ->excludes(trace)
      ->excludes(html);
  Option* json = command->get_option("--json");
  instructions->excludes(json);
  effective->excludes(json)->excludes(instructions);
  command->footer(
      "Examples:\n"
      "  trainer plan configs/gpt2-124m.yaml\n"
      "  trainer plan job.yaml train.batch.micro=2 activation_checkpointing.mode=full --json\n"
      "  trainer plan job.yaml --html plan.html\n"
      "  trainer plan job.yaml other.yaml cluster.devices_per_node=8\n"
      "  trainer plan job.yaml --sweep cluster.nodes=1,2,4,8 --sweep cluster.hardware=h100-sxm,a100-80gb\n"
      "  trainer plan job.yaml --effective >effective.yaml\n"
      "\n"
      "Needs no data and allocates nothing. A job that does not fit into memory is shown all the same and exits 78; "
      "one whose\n"
      "weights and optimizer states alone do not fit is refused before it is planned. A sweep exits 0 if one of its "
      "jobs fits.\n"
      "In --sweep, nodes stands for cluster.nodes, devices for cluster.devices_per_node, hardware for "
      "cluster.hardware.\n");
  command->callback([arguments, &work] { work = [arguments] { return plan(*arguments); }; });
}

}  // namespace trainer::tools
