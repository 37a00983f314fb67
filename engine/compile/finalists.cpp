// How a finalist is made: the job with the candidate's values written into it, compiled as a fixed job and played.
#include "engine/compile/finalists.h"

#include <algorithm>
#include <utility>

#include "engine/compile/fixed.h"
#include "engine/compile/hardware.h"
#include "engine/core/parallel.h"
#include "engine/cost/predict.h"

namespace trainer {

using cost::Candidate;
using cost::Scored;

StrategyJob strategy_of(const StrategyJob& job, const Candidate& c, const std::vector<std::string>& pieces) {
  StrategyJob strategy = job;
  strategy.free = {};
  strategy.data = cost::data_strategy_of(job.data, c);
  strategy.tensor.degree = c.size(Axis::tensor);
  strategy.tensor.sequence_parallel = c.sequence_parallel;
  strategy.tensor.keep = c.gathers_again ? TensorKeep::shard : TensorKeep::gathered;
  strategy.tensor.overlap = c.pairs;
  strategy.expert.degree = c.size(Axis::expert);
  strategy.context.degree = c.size(Axis::context);
  strategy.context.kind = c.context;
  strategy.pipeline.degree = c.size(Axis::pipeline);
  strategy.pipeline.schedule = c.schedule;
  strategy.pipeline.virtual_stages = c.virtual_stages;
  if (c.begins) {
    strategy.pipeline.split_policy = SplitPolicy::names;
    strategy.pipeline.split.clear();
    for (std::size_t chunk = 1; chunk < c.begins->size(); ++chunk)
      strategy.pipeline.split.push_back(pieces[static_cast<std::size_t>((*c.begins)[chunk])]);
  }
  return strategy;
}

namespace {

LoadedJob fixed_as(const LoadedJob& loaded, const Candidate& c, const std::vector<std::string>& pieces) {
  LoadedJob job = loaded;
  job.job.strategy = strategy_of(loaded.job.strategy, c, pieces);
  job.job.train.batch.micro = c.micro;
  job.job.activation_checkpointing = c.recompute;
  return job;
}

std::int64_t instructions_of(const Plan& plan) {
  std::int64_t sum = 0;
  for (const Role& role : plan.roles)
    sum += static_cast<std::int64_t>(role.program(ProgramKind::step)->instructions.size());
  return sum;
}

}  // namespace

std::vector<Finalists::Planned> Finalists::plan(const std::vector<Scored>& scored) {
  std::vector<Attempt> attempts(scored.size());
  for_each_index(scored.size(), [&](std::size_t i) { attempts[i] = attempt(scored[i]); });
  std::vector<Planned> planned;
  for (Attempt& one : attempts) {
    if (one.refused) {
      refused_.push_back(std::move(*one.refused));
      planned.emplace_back();
      continue;
    }
    if (one.compiled) count(one.compiled->plan);
    planned.push_back({one.finalist.scored, one.compiled.has_value()});
    finalists_.push_back(std::move(one.finalist));
    compiled_.push_back(std::move(one.compiled));
  }
  return planned;
}

Finalists::Attempt Finalists::attempt(const Scored& scored) const {
  const LoadedJob job = fixed_as(loaded_, scored.candidate, pieces_);
  Attempt attempt{{scored}, {}, {}};
  try {
    std::int64_t least = 0;
    if (!cannot_fit(job, scored, least)) return played(job, scored);
    attempt.finalist.scored.bytes = least;
    attempt.finalist.scored.fits = false;
  } catch (const JobError& error) {
    attempt.refused = error;
  }
  return attempt;
}

void Finalists::count(const Plan& plan) {
  instructions_ += instructions_of(plan);
  ++num_planned_;
}

void Finalists::complete(std::size_t finalist) {
  if (compiled_[finalist]) return;
  const Scored scored = finalists_[finalist].scored;
  Attempt attempt = played(fixed_as(loaded_, scored.candidate, pieces_), scored);
  count(attempt.compiled->plan);
  finalists_[finalist] = std::move(attempt.finalist);
  compiled_[finalist] = std::move(attempt.compiled);
}

// Looked at where its score is near the limit. The stages of a pipeline are some of what planning it costs, one of them
// little.
bool Finalists::cannot_fit(const LoadedJob& job, const Scored& scored, std::int64_t& least) const {
  constexpr double kNear = 0.99;
  if (scored.candidate.size(Axis::pipeline) == 1 || scored.fullest.empty()) return false;
  if (static_cast<double>(scored.bytes) < kNear * static_cast<double>(limit_bytes_)) return false;
  least = least_bytes(job, hardware_, scored.fullest);
  return least > limit_bytes_;
}

Finalists::Attempt Finalists::played(const LoadedJob& job, const Scored& scored) const {
  CompiledJob compiled = compile_fixed(job, hardware_, Purpose::train, Proof::later);
  const cost::Prediction& prediction = predict_step(compiled, hardware_);
  Finalist one{scored, true, prediction.roles[prediction.slowest]};
  one.scored.step_us = prediction.step_us;
  one.scored.spread = prediction.spread();
  one.scored.bytes = compiled.peak_bytes();
  one.scored.fits = compiled.fits;
  return {std::move(one), std::move(compiled), {}};
}

bool Finalists::any_fits() const {
  return std::any_of(finalists_.begin(), finalists_.end(), [](const Finalist& one) { return one.scored.fits; });
}

}  // namespace trainer
