// Sizes follow from the plan, space from the file system.
#include "engine/train/checkpoint_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/checkpoint/checkpoint.h"
#include "engine/core/amounts.h"
#include "engine/core/error.h"
#include "engine/train/base.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kDescription = 512;  // of a tensor, in the head of its file and in the manifest, about

// Saves that are left: every so many steps, and after the last.
std::int64_t saves_after(const Job& job, std::int64_t step) {
  const std::int64_t every = job.checkpoint.every, last = job.train.steps;
  if (step >= last) return 0;
  return last / every - step / every + (last % every == 0 ? 0 : 1);
}

// The directory, or what of its path is there.
fs::path existing_part(const std::string& dir) {
  std::error_code ignored;
  fs::path path = fs::absolute(dir, ignored);
  while (path.has_relative_path() && !fs::exists(path, ignored)) path = path.parent_path();
  return path;
}

}  // namespace

CheckpointPlan checkpoint_plan(const Job& job, const CompiledJob& compiled) {
  const Saved saved = saved_of(compiled);
  const Staging staging = staging_of(compiled.plan, 1, saved);
  const bool full = job.checkpoint.format == CheckpointFormat::full;
  const Staging::Save& save = full ? staging.full : staging.sharded;
  CheckpointPlan plan;
  plan.bytes = checkpoint_bytes(compiled.plan, saved) + kDescription * checkpoint_tensors(compiled.plan, saved);
  if (job.checkpoint.keep) plan.kept = *job.checkpoint.keep + (job.checkpoint.keep_best ? 1 : 0);
  const std::int64_t behind = save.copying + save.copy;
  plan.behind = job.checkpoint.behind && behind <= compiled.host_bytes;
  plan.copy = plan.behind ? save.copy : 0;
  plan.saving = plan.behind ? behind : save.in_step;
  if (job.checkpoint.behind && !plan.behind)
    plan.why_in_step = fmt::format("writing behind the step takes {} of host memory, and {} are free beside the plan",
                                   bytes_text(behind), bytes_text(compiled.host_bytes));
  return plan;
}

std::string lack_of_space(const Job& job, const CompiledJob& compiled, std::int64_t step) {
  if (!job.checkpoint.dir || saves_after(job, step) == 0) return "";
  const CheckpointPlan plan = checkpoint_plan(job, compiled);
  std::int64_t more = 1;
  if (plan.kept) {
    const auto there = static_cast<std::int64_t>(checkpoint::list_checkpoints(*job.checkpoint.dir).size());
    more += *plan.kept - std::min(there, *plan.kept);
    if (!job.checkpoint.keep_best) more = std::min(more, saves_after(job, step));
  }
  std::error_code error;
  const fs::path at = existing_part(*job.checkpoint.dir);
  const fs::space_info space = fs::space(at, error);
  if (error) throw IoError(at.string() + ": asking for free space: " + error.message());
  const std::uint64_t needed = static_cast<std::uint64_t>(more) * static_cast<std::uint64_t>(plan.bytes);
  if (space.available >= needed) return "";
  return fmt::format(
      "{}: {} more checkpoint{} need{} {} ({} each), but the file system has {} free: make room, lower "
      "checkpoint.keep, or name another checkpoint.dir",
      *job.checkpoint.dir, more, more == 1 ? "" : "s", more == 1 ? "s" : "",
      bytes_text(static_cast<std::int64_t>(needed)), bytes_text(plan.bytes),
      bytes_text(static_cast<std::int64_t>(space.available)));
}

}  // namespace trainer
