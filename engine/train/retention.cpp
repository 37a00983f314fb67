// How checkpoints are removed, and which one a rollback takes.
#include "engine/train/retention.h"

#include <fmt/format.h>

#include "engine/core/error.h"

namespace trainer {

void Retention::take_over(std::int64_t step) {
  bool finite_since = false;  // whether a checkpoint later than the one looked at shows a finite step
  for (const checkpoint::CheckpointPath& each : checkpoint::list_checkpoints(store_.dir())) {
    if (each.step > step) continue;
    SavedFacts facts;
    try {
      facts = facts_of(checkpoint::open_checkpoint(each.path).manifest, each.path);
    } catch (const DataError&) {
      continue;  // damaged: neither good nor evidence
    }
    note_loss(each.step, facts);
    if (finite_since && !good_) good_ = each.step;
    if (!finite_since) unproven_.insert(unproven_.begin(), each.step);
    finite_since = finite_since || !facts.after_skipped;
  }
}

void Retention::saved(std::int64_t step, const SavedFacts& facts) {
  std::erase_if(unproven_, [&](std::int64_t other) { return other >= step; });
  unproven_.push_back(step);
  note_loss(step, facts);
  prune(step);
}

void Retention::note_loss(std::int64_t step, const SavedFacts& facts) {
  if (job_.keep_best && facts.val_loss && (!best_ || *facts.val_loss < best_->loss)) best_ = {step, *facts.val_loss};
}

void Retention::finite() {
  if (unproven_.empty()) return;
  good_ = unproven_.back();
  unproven_.clear();
  prune(*good_);
}

Retention::Fallback Retention::fall_back() {
  Fallback fallback;
  if (!good_) return fallback;
  for (const std::int64_t step : unproven_) {
    fallback.set_aside.push_back(store_.set_aside(step));
    if (best_ && best_->step == step) best_.reset();
  }
  unproven_.clear();
  for (const checkpoint::CheckpointPath& each : checkpoint::list_checkpoints(store_.dir()))
    if (each.step == *good_) fallback.good = each.path;
  fallback.step = *good_;
  return fallback;
}

void Retention::prune(std::int64_t step) {
  std::vector<std::int64_t> besides;
  if (good_) besides.push_back(*good_);
  if (best_) besides.push_back(best_->step);
  store_.remove_older(step, job_.keep.value_or(0), besides);
}

std::string advice(const Retention::Fallback& fallback, OnNan on_nan, bool spent) {
  std::string text = "; nothing was saved";
  for (const std::string& path : fallback.set_aside)
    text += "\nA checkpoint whose next step was not finite was renamed to " + path + ".";
  if (!fallback.good.empty())
    text += fmt::format("\nThe last good checkpoint is {} (after {} steps); the same command goes on from it.",
                        fallback.good, fallback.step);
  else
    text += "\nThere is no good checkpoint to go on from; another checkpoint.dir starts over.";
  if (on_nan == OnNan::rollback && spent) text += "\nThe run has already gone back 3 times (train.on_nan: rollback).";
  text += "\nLower train.optimizer.lr, lengthen train.lr_schedule.warmup_steps or lower train.clip_norm";
  return text + (on_nan == OnNan::stop
                     ? "; train.on_nan=skip skips such updates, train.on_nan=rollback goes back by itself."
                     : ".");
}

}  // namespace trainer
