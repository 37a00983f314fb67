// How a finalist is made: the job with the candidate's values written into it, compiled as a fixed job and played.
#include "engine/compile/finalists.h"

#include <algorithm>
#include <limits>
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
    count(one);
    planned.push_back({one.finalist.scored, one.instructions > 0});
    finalists_.push_back(std::move(one.finalist));
    compiled_.push_back(std::move(one.compiled));
  }
  return planned;
}

Finalists::Attempt Finalists::attempt(const Scored& scored) const {
  const LoadedJob job = fixed_as(loaded_, scored.candidate, pieces_);
  Attempt attempt{{scored}, {}, 0, {}};
  try {
    std::int64_t least = 0;
    if (!cannot_fit(job, scored, least)) return played(job, scored, Finish::draft);
    attempt.finalist.scored.bytes = least;
    attempt.finalist.scored.fits = false;
  } catch (const JobError& error) {
    attempt.refused = error;
  }
  return attempt;
}

void Finalists::count(const Attempt& attempt) {
  if (attempt.instructions == 0) return;
  instructions_ += attempt.instructions;
  ++num_planned_;
}

std::optional<Scored> Finalists::complete(std::size_t finalist) {
  const Scored scored = finalists_[finalist].scored;
  try {
    Attempt attempt = played(fixed_as(loaded_, scored.candidate, pieces_), scored, Finish::unproved);
    if (finalists_[finalist].basis == Basis::score) count(attempt);
    finalists_[finalist] = std::move(attempt.finalist);
    compiled_[finalist] = std::move(attempt.compiled);
    return finalists_[finalist].scored;
  } catch (const JobError& error) {
    refused_.push_back(error);
    const auto at = static_cast<std::ptrdiff_t>(finalist);
    finalists_.erase(finalists_.begin() + at);
    compiled_.erase(compiled_.begin() + at);
    return std::nullopt;
  }
}

// Looked at where its score is near the limit. The stages of a pipeline are some of what planning it costs, one of them
// little.
bool Finalists::cannot_fit(const LoadedJob& job, const Scored& scored, std::int64_t& least) const {
  constexpr double kNear = 0.99;
  if (scored.candidate.size(Axis::pipeline) == 1 || scored.fullest == cost::kNoStages) return false;
  if (static_cast<double>(scored.bytes) < kNear * static_cast<double>(limit_bytes_)) return false;
  std::vector<int> stages;
  for (const int stage : scored.fullest)
    if (stage >= 0) stages.push_back(stage);
  least = least_bytes(job, hardware_, stages);
  return least > limit_bytes_;
}

// A step takes about as long as a list as with loops: within 0.5%.
Finalists::Attempt Finalists::played(const LoadedJob& job, const Scored& scored, Finish finish) const {
  CompiledJob compiled = compile_fixed(job, hardware_, Purpose::train, finish);
  const cost::Prediction& prediction = predict_step(compiled, hardware_);
  const bool whole = !compiled.least_as_list;
  Finalist one{scored, whole ? Basis::plan : Basis::draft, prediction.roles[prediction.slowest]};
  one.scored.step_us = prediction.step_us;
  one.scored.spread = prediction.spread();
  one.scored.bytes = whole ? compiled.peak_bytes() : *compiled.least_as_list;
  const bool host_fits = most_bytes(compiled.plan, Space::host) <=
                         compiled.host_limit_bytes.value_or(std::numeric_limits<std::int64_t>::max());
  one.scored.fits = whole ? compiled.fits : one.scored.bytes <= limit_bytes_ && host_fits;
  const std::int64_t instructions = instructions_of(compiled.plan);
  return {std::move(one), whole ? std::optional(std::move(compiled)) : std::nullopt, instructions, {}};
}

std::int64_t Finalists::instructions(std::size_t finalist) const { return instructions_of(compiled_[finalist]->plan); }

bool Finalists::any_fits() const {
  return std::any_of(finalists_.begin(), finalists_.end(), [](const Finalist& one) { return one.scored.fits; });
}

}  // namespace trainer
