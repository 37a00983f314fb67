// Each point is the plan's memory at that time, and what staging (engine/train/staging.h) takes of the host's.
#include "engine/report/lifecycle.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/train/ranks.h"
#include "engine/train/staging.h"

namespace trainer::report {
namespace {

// Of the fullest rank while it runs the program; 0 where no role has it.
std::int64_t live_peak(const Plan& plan, ProgramKind kind) {
  std::int64_t most = 0;
  for (const Role& role : plan.roles)
    if (const Program* program = role.program(kind))
      for (std::int64_t live : live_bytes(role, *program)) most = std::max(most, live);
  return most;
}

std::int64_t persistent(const Plan& plan) {
  std::int64_t most = 0;
  for (const Role& role : plan.roles) most = std::max(most, role.persistent_bytes);
  return most;
}

}  // namespace

std::vector<LifecyclePoint> lifecycle_of(const LoadedJob& loaded, const CompiledJob& compiled) {
  const Plan& plan = compiled.plan;
  const CheckpointJob& checkpoint = loaded.job.checkpoint;
  const int threads = threads_per_rank(ranks_per_node(loaded.job));
  const Staging staging = staging_of(plan, threads);
  const std::int64_t held = persistent(plan);
  std::vector<LifecyclePoint> points;
  points.push_back(
      {"start", staging.draw, std::max(held, live_peak(plan, ProgramKind::refresh)),
       fmt::format("weights as {} thread{} draw{} them", threads, threads == 1 ? "" : "s", threads == 1 ? "s" : "")});
  points.push_back({"step", 0, live_peak(plan, ProgramKind::step), "nothing"});
  for (ProgramKind program : {ProgramKind::average, ProgramKind::step_averaging, ProgramKind::evaluate})
    if (const std::int64_t live = live_peak(plan, program); live > 0)
      points.push_back({std::string(name_of(program)), 0, live, "nothing: it runs in the step's memory"});
  if (!checkpoint.dir) return points;
  const bool full = checkpoint.format == CheckpointFormat::full;
  points.push_back({"save", full ? staging.save_full : staging.save_sharded, held,
                    full ? "rank 0, which writes one file: a part of a tensor, and what other ranks sent of it"
                         : "a part of a tensor, on its way to the rank's file"});
  points.push_back({"resume", staging.load, std::max(held, live_peak(plan, ProgramKind::refresh)),
                    "a part of a file as it is verified, then of a tensor as it is read"});
  return points;
}

Json lifecycle_json(const std::vector<LifecyclePoint>& points) {
  Json list = Json::array();
  for (const LifecyclePoint& one : points)
    list.push_back({{"point", one.point}, {"bytes", one.bytes}, {"inside_bytes", one.inside}, {"what", one.what}});
  return list;
}

}  // namespace trainer::report
