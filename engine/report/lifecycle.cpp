// Each point is the plan's memory at that time, and what staging (engine/train/staging.h) takes of the host's.
#include "engine/report/lifecycle.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/amounts.h"
#include "engine/train/checkpoint_plan.h"
#include "engine/train/ranks.h"

namespace trainer::report {
namespace {

// Of the fullest rank while it runs the program; 0 where no role has it.
std::int64_t live_peak(const CompiledJob& compiled, ProgramKind kind) {
  std::int64_t most = 0;
  for (std::size_t role = 0; role < compiled.plan.roles.size(); ++role) {
    const std::vector<Program>& programs = compiled.plan.roles[role].programs;
    for (std::size_t i = 0; i < programs.size(); ++i)
      if (programs[i].kind == kind) most = std::max(most, compiled.memory[role].by_program[i]);
  }
  return most;
}

std::int64_t persistent(const Plan& plan) {
  std::int64_t most = 0;
  for (const Role& role : plan.roles) most = std::max(most, role.persistent_bytes);
  return most;
}

std::string what_saving_takes(CheckpointFormat format, bool behind) {
  const bool full = format == CheckpointFormat::full;
  if (behind)
    return full ? "rank 0, which writes one file: a copy of all that is saved, and a part of a tensor that ranks sent"
                : "a copy of what the rank saves, from which its files are written while steps run";
  return full ? "rank 0, which writes one file: a part of a tensor, and what other ranks sent of it"
              : "a part of a tensor, on its way to the rank's file";
}

}  // namespace

std::vector<LifecyclePoint> lifecycle_of(const LoadedJob& loaded, const CompiledJob& compiled) {
  const Plan& plan = compiled.plan;
  const CheckpointJob& checkpoint = loaded.job.checkpoint;
  const int threads = threads_per_rank(ranks_per_node(loaded.job));
  const Staging staging = staging_of(plan, threads);
  const CheckpointPlan saves = checkpoint.dir ? checkpoint_plan(loaded.job, compiled) : CheckpointPlan{};
  const std::int64_t held = persistent(plan);
  const std::string copied =
      saves.behind ? "the copy of a checkpoint whose files are written, from the first save on" : "";
  std::vector<LifecyclePoint> points;
  points.push_back(
      {"start", staging.draw, std::max(held, live_peak(compiled, ProgramKind::refresh)),
       fmt::format("weights as {} thread{} draw{} them", threads, threads == 1 ? "" : "s", threads == 1 ? "s" : "")});
  points.push_back({"step", saves.copy, live_peak(compiled, ProgramKind::step), saves.behind ? copied : "nothing"});
  for (ProgramKind program : {ProgramKind::average, ProgramKind::swap, ProgramKind::step_averaging,
                              ProgramKind::evaluate, ProgramKind::prompt, ProgramKind::sample})
    if (const std::int64_t live = live_peak(compiled, program); live > 0)
      points.push_back({std::string(name_of(program)), saves.copy, live,
                        saves.behind ? copied : "nothing: it runs in the step's memory"});
  if (!checkpoint.dir) return points;
  points.push_back({"save", saves.saving, held, what_saving_takes(checkpoint.format, saves.behind)});
  // A run that goes back to a checkpoint still has the copy of another.
  const std::int64_t copy = loaded.job.train.on_nan == OnNan::rollback ? saves.copy : 0;
  points.push_back({"resume", staging.load + copy, std::max(held, live_peak(compiled, ProgramKind::refresh)),
                    fmt::format("a part of a file as it is verified, then of a tensor as it is read{}",
                                copy > 0 ? "; at a rollback beside the copy" : "")});
  return points;
}

Json lifecycle_json(const std::vector<LifecyclePoint>& points) {
  Json list = Json::array();
  for (const LifecyclePoint& one : points)
    list.push_back({{"point", one.point}, {"bytes", one.bytes}, {"inside_bytes", one.inside}, {"what", one.what}});
  return list;
}

Json checkpoint_json(const LoadedJob& loaded, const CompiledJob& compiled) {
  if (!loaded.job.checkpoint.dir) return nullptr;
  const CheckpointPlan plan = checkpoint_plan(loaded.job, compiled);
  const auto number = [](std::optional<std::int64_t> value) { return value ? Json(*value) : Json(nullptr); };
  return {{"bytes", plan.bytes},
          {"kept", number(plan.kept)},
          {"kept_bytes", number(plan.kept ? std::optional(*plan.kept * plan.bytes) : std::nullopt)},
          {"behind", plan.behind},
          {"copy_bytes", plan.copy},
          {"why_in_step", plan.why_in_step}};
}

std::string checkpoint_line(const LoadedJob& loaded, const CompiledJob& compiled) {
  if (!loaded.job.checkpoint.dir) return "none are saved (checkpoint.dir: null)";
  const CheckpointPlan plan = checkpoint_plan(loaded.job, compiled);
  const auto size = [](std::int64_t bytes) { return bytes_text(static_cast<double>(bytes)); };
  std::string text =
      fmt::format("{} each, {}; ", size(plan.bytes),
                  plan.kept ? fmt::format("{} for the {} that stay{}, and one more while it is written",
                                          size(*plan.kept * plan.bytes), *plan.kept, *plan.kept == 1 ? "s" : "")
                            : "and all stay");
  if (plan.behind) return text + fmt::format("written behind the step, from a copy of {}", size(plan.copy));
  return text + "written in the step" + (plan.why_in_step.empty() ? "" : ": " + plan.why_in_step);
}

}  // namespace trainer::report
