// What the ranks do together is in the order of their calls; the writing thread sees none of it.
#include "engine/train/saver.h"

#include <chrono>
#include <thread>
#include <utility>

#include "engine/train/base.h"
#include "engine/train/checkpoint_plan.h"

namespace trainer {

Saver::Saver(const Job& job, const CompiledJob& compiled, LoadedRank loaded, ControlChannel& channel, First first)
    : job_(job), compiled_(compiled), loaded_(loaded), channel_(channel), first_(std::move(first)) {
  const CheckpointPlan plan = checkpoint_plan(job, compiled);
  const bool writes = job.checkpoint.format == CheckpointFormat::sharded || loaded.rank == 0;
  if (plan.behind) behind_.emplace(writes ? plan.copy : 0);
}

void Saver::save(std::int64_t step, const SavedFacts& facts) {
  finish();
  if (first_.store != nullptr) first_.store->begin(step);
  channel_.barrier();
  if (behind_) {
    behind_->stage(*job_.checkpoint.dir, step);
    save_to(*behind_);
    behind_->start();
    under_way_ = {step, facts};
    return;
  }
  FilesAtOnce files(*job_.checkpoint.dir, step);
  save_to(files);
  channel_.barrier();
  under_way_ = {step, facts};
  commit();
}

void Saver::save_to(SavedFiles& files) {
  if (job_.checkpoint.format == CheckpointFormat::sharded)
    save_sharded(loaded_, files, saved_of(compiled_));
  else
    save_full(loaded_, channel_, &files, saved_of(compiled_));
}

void Saver::commit_if_written() {
  if (!under_way_) return;
  if (behind_->failed()) finish();
  if (!channel_.any(!behind_->ended())) finish();
}

void Saver::finish() {
  if (!under_way_) return;
  try {
    behind_->finish();
  } catch (...) {
    under_way_.reset();
    throw;
  }
  channel_.barrier();
  commit();
}

void Saver::commit() {
  const UnderWay saved = *std::exchange(under_way_, std::nullopt);
  if (first_.store == nullptr) return;
  const std::string path = first_.store->commit(saved.step, hash_of(compiled_.plan), metadata_of(saved.facts));
  first_.retention->saved(saved.step, saved.facts);
  first_.committed(saved.step, path);
  if (saved.proven) first_.retention->finite();
}

void Saver::finite() {
  if (first_.retention != nullptr) first_.retention->finite();
  if (under_way_) under_way_->proven = true;
}

void Saver::finish_after_error() noexcept {
  if (!under_way_) return;
  try {
    behind_->finish();
    if (first_.store != nullptr) wait_for_records();
    commit();
  } catch (...) {  // the error that ends the run is the one that is told
  }
}

// Ranks no longer answer each other. They began to write together, so the last is not far behind the first.
void Saver::wait_for_records() const {
  constexpr std::chrono::milliseconds kPoll{20}, kMost{5000};
  for (std::chrono::milliseconds waited{0}; waited < kMost && !first_.store->has_all_records(); waited += kPoll)
    std::this_thread::sleep_for(kPoll);
}

}  // namespace trainer
