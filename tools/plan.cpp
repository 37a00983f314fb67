// trainer plan: what a step will do, before anything is allocated.
#include "engine/core/error.h"
#include "engine/plan/traffic.h"
#include "tools/command.h"
#include "tools/plan_report.h"
#include "tools/text.h"

namespace trainer::tools {
namespace {

struct Arguments : JobArguments {
  bool instructions = false, effective = false;
};

void put_json(const LoadedJob& loaded, const CompiledJob& compiled) {
  Json communication = Json::array();
  for (const Traffic& traffic : traffic_of(compiled.plan))
    communication.push_back(
        {{"axis", traffic.axis}, {"collective", traffic.collective}, {"count", traffic.count}, {"bytes", traffic.bytes}});
  Json programs = Json::object();
  for (const Program& program : compiled.plan.roles.front().programs) programs[program.name] = program.instructions.size();
  put_document(
      Json{{"hash", hash_of(compiled.plan)},
           {"name", loaded.job.name},
           {"strategy", strategy_json(loaded.job, compiled)},
           {"why", compiled.strategy_why},
           {"mesh", mesh_json(compiled.plan.mesh)},
           {"world_size", compiled.plan.mesh.world_size()},
           {"batch", {{"global", compiled.batch.global}, {"micro", compiled.batch.micro}, {"micro_batches", compiled.batch.micro_batches}}},
           {"parameters", compiled.num_parameters},
           {"flops_per_step", compiled.flops_per_step},
           {"instructions", programs},
           {"memory", memory_json(compiled)},
           {"communication", communication}});
}

std::string mesh_line(const Mesh& mesh) {
  std::string text;
  for (Axis axis : kAxes) text += fmt::format("{}{} {}", text.empty() ? "" : " × ", name_of(axis), mesh.size(axis));
  return text;
}

// The largest of what is alive at the peak beside what is persistent.
void put_alive(const Role& role, const MemoryReport& report) {
  const Program* program = role.program(report.program);
  if (program == nullptr) return;
  const std::vector<BufferId> alive = alive_at(role, *program, report.instruction);
  if (alive.empty()) return;
  put("  then alive, the largest of {} buffers:\n", alive.size());
  Table table({"  buffer", "category", "bytes"});
  for (std::size_t i = 0; i < std::min<std::size_t>(alive.size(), 5); ++i) {
    const Buffer& buffer = role.buffer(alive[i]);
    const std::string micro_batch = buffer.micro_batch >= 0 ? fmt::format(" mb{}", buffer.micro_batch) : "";
    table.add({"  " + role.name(buffer.name) + micro_batch, std::string(name_of(buffer.category)), grouped(buffer.bytes)});
  }
  put("{}", table.str());
}

std::string peak_line(const Role& role, const MemoryReport& report) {
  const Program* program = role.program(report.program);
  if (program == nullptr) return "";
  const Instruction& instruction = program->instructions[static_cast<std::size_t>(report.instruction)].instruction;
  return fmt::format("  the peak is at instruction {} of {}: {}\n", report.instruction, report.program, title_of(role, instruction));
}

void put_memory(const CompiledJob& compiled) {
  const MemoryReport& report = fullest(compiled);
  put("\nmemory of a rank: {} ({} bytes) of {}{}\n", bytes_text(static_cast<double>(report.peak_bytes)), grouped(report.peak_bytes),
      bytes_text(static_cast<double>(compiled.limit_bytes)), compiled.fits ? "" : ": DOES NOT FIT");
  Table table({"at the peak", "bytes", "share"});
  for (int i = 0; i < kNumCategories; ++i) {
    const std::int64_t bytes = report.by_category[static_cast<std::size_t>(i)];
    table.add({std::string(name_of(static_cast<Category>(i))), grouped(bytes),
               fmt::format("{:.1f}%", 100.0 * static_cast<double>(bytes) / static_cast<double>(report.peak_bytes))});
  }
  put("{}{}", table.str(), peak_line(compiled.plan.roles.front(), report));
  put_alive(compiled.plan.roles.front(), report);
}

void put_communication(const Plan& plan) {
  const std::vector<Traffic> traffic = traffic_of(plan);
  if (traffic.empty()) return put("\ncommunication: none\n");
  put("\ncommunication of a rank and step, as rings send it\n");
  Table table({"collective", "axis", "count", "bytes sent"});
  for (const Traffic& one : traffic) table.add({one.collective, one.axis, grouped(one.count), grouped(one.bytes)});
  put("{}", table.str());
}

void put_units(const Role& role) {
  constexpr std::size_t kShown = 16;
  put("\nunits of parameters: {}\n", role.units.size());
  Table table({"unit", "tensors", "elements"});
  for (std::size_t i = 0; i < std::min(role.units.size(), kShown); ++i)
    table.add({role.units[i].name, grouped(static_cast<std::int64_t>(role.units[i].tensors.size())), grouped(role.units[i].elements)});
  if (role.units.size() > kShown) table.add({fmt::format("… and {} more", role.units.size() - kShown)});
  put("{}", table.str());
}

void put_text(const LoadedJob& loaded, const CompiledJob& compiled) {
  const Role& role = compiled.plan.roles.front();
  put("{}: plan {}\n", loaded.job.name, hash_of(compiled.plan));
  put("strategy:   {}: {}\n", strategy_line(compiled), compiled.strategy_why);
  put("mesh:       {}\n", mesh_line(compiled.plan.mesh));
  put("batch:      {}\n", batch_line(compiled.batch));
  put("parameters: {}\n", grouped(compiled.num_parameters));
  put("a step:     {}", flops_text(compiled.flops_per_step));
  for (const Program& program : role.programs)
    put("{} {} {}", program.name == role.programs.front().name ? "; instructions:" : ",",
        grouped(static_cast<std::int64_t>(program.instructions.size())), program.name);
  put("\n");
  put_memory(compiled);
  put_communication(compiled.plan);
  put_units(role);
}

int plan(const Arguments& arguments) {
  const LoadedJob loaded = arguments.load();
  if (arguments.effective) return put("{}", effective_job(loaded)), kDone;
  const CompiledJob compiled = plan_here(loaded, Purpose::train);
  if (arguments.instructions)
    put("{}", print(compiled.plan));
  else if (arguments.json)
    put_json(loaded, compiled);
  else
    put_text(loaded, compiled);
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
