// How the checkpoint is chosen and the start is compared with the job.
#include "engine/train/start.h"

#include <fmt/format.h>

#include <filesystem>
#include <random>

#include "engine/core/error.h"
#include "engine/train/checkpoint_job.h"
#include "engine/train/going_on.h"
#include "engine/train/weights.h"

namespace trainer {
namespace {

using Say = std::function<void(const std::string&)>;

// The checkpoint to go on from; empty: none.
std::string choose_checkpoint(const CheckpointJob& job, const Say& say) {
  if (job.resume == CheckpointJob::Resume::path) {
    const std::vector<std::string> damaged = checkpoint::verify(job.resume_from);
    if (!damaged.empty()) throw DataError("checkpoint is damaged: " + damaged.front());
    return job.resume_from;
  }
  if (job.resume != CheckpointJob::Resume::automatic || !job.dir) return "";
  const checkpoint::NewestWhole newest = checkpoint::newest_whole(*job.dir);
  tell_passed_over(newest, say);
  if (!newest.checkpoint && !newest.damaged.empty())
    throw DataError("no checkpoint in " + *job.dir + " is whole: " + newest.damaged.front() +
                    " (another checkpoint.dir starts over)");
  return newest.checkpoint ? newest.checkpoint->path : "";
}

bool is_in(const std::string& path, const std::string& dir) {
  namespace fs = std::filesystem;
  std::error_code error;
  return fs::equivalent(fs::path(path + "/.").lexically_normal().parent_path().parent_path(), dir, error) && !error;
}

// Later checkpoints are of another branch of training, and the next start would go on from them.
void require_newest(const LoadedJob& loaded, std::int64_t step, const std::string& start) {
  const CheckpointJob& job = loaded.job.checkpoint;
  if (!job.dir || job.resume == CheckpointJob::Resume::automatic) return;
  for (const checkpoint::CheckpointPath& each : checkpoint::list_checkpoints(*job.dir)) {
    if (each.step <= step) continue;
    Diagnostic mistake = loaded.at(
        "checkpoint.resume",
        fmt::format(
            "{} has a later checkpoint, {}, from which resume: auto would go on instead of from what this run saves",
            *job.dir, std::filesystem::path(each.path).filename().string()));
    mistake.allowed = start.empty() ? "auto; or another checkpoint.dir"
                                    : "auto; another checkpoint.dir; or remove the later checkpoints";
    throw JobError({std::move(mistake)});
  }
}

std::string random_id() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

std::string steps_text(std::int64_t step, std::int64_t last) {
  if (step == last) return fmt::format("nothing left to do: {} of {} steps", step, last);
  return fmt::format("nothing left to do: the checkpoint has {} steps, train.steps is {}", step, last);
}

// Rank 0's part. What every rank must know of it is in `start`.
void compare(const LoadedJob& loaded, const SavedFacts& now, Start& start, const Say& say) {
  const checkpoint::Checkpoint& from = *start.checkpoint;
  const std::vector<Difference> found = differences(start.facts, now);
  require_same_run(loaded, start.facts, found, from.path);
  if (start.finished) {
    if (start.facts.job) require_same_end(loaded, found, from.path);
    return say(fmt::format("{} ({})", steps_text(from.manifest.step, loaded.job.train.steps), from.path));
  }
  say(fmt::format("resuming from {} after {} steps", from.path, from.manifest.step));
  if (!start.facts.job)
    say("this checkpoint does not hold its job (trainer 0.1.0 wrote it): whether job and data are the same was not "
        "checked");
  for (const Difference& one : found) {
    start.changes.push_back(one.str());
    say("changed: " + one.str());
  }
}

}  // namespace

Start find_start(const LoadedJob& loaded, const SavedFacts& now, Communicator& communicator, ControlChannel& channel,
                 const Say& say) {
  const bool first = communicator.rank() == 0;
  const Job& job = loaded.job;
  Start start;
  if (first && job.checkpoint.dir) start.store = std::make_unique<checkpoint::Store>(*job.checkpoint.dir, say);
  const std::string path = channel.from_first(first ? choose_checkpoint(job.checkpoint, say) : "");
  if (!path.empty()) {
    start.checkpoint = checkpoint::open_checkpoint(path);
    start.facts = facts_of(start.checkpoint->manifest, path);
    start.in_dir = job.checkpoint.dir && is_in(path, *job.checkpoint.dir);
    // Of a checkpoint elsewhere the weights are still to be saved in the job's folder.
    start.finished = start.in_dir && start.checkpoint->manifest.step >= job.train.steps;
  }
  if (first) {
    require_newest(loaded, start.checkpoint ? start.checkpoint->manifest.step : 0, path);
    if (start.checkpoint) compare(loaded, now, start, say);
  }
  if (start.store && !start.finished) carry_model(*start.store, job);
  start.facts.run_id = channel.from_first(start.facts.run_id.empty() && first ? random_id() : start.facts.run_id);
  return start;
}

}  // namespace trainer
