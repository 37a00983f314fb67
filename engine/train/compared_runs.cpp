// How runs are made: trained until a step, with a monitor that keeps what they tell.
#include "engine/train/compared_runs.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "engine/core/op_record.h"
#include "engine/train/rank_gradients.h"
#include "engine/train/replicas.h"
#include "engine/train/serial_rounds.h"
#include "engine/train/serial_steps.h"
#include "engine/train/train.h"

namespace trainer {
namespace {

// Asks for its end after so many steps: the learning rate goes on as if the job went on.
class Recorder final : public Monitor {
 public:
  Recorder(Told& told, std::int64_t steps, std::atomic<bool>& stop) : told_(told), steps_(steps), stop_(stop) {}
  void step(const StepRecord& record) override {
    told_.losses.push_back(record.loss);
    told_.norms.push_back(record.skipped ? std::numeric_limits<double>::infinity() : record.grad_norm);
    told_.counts_dropped = told_.counts_dropped || record.dropped;
    told_.dropped.push_back(record.dropped.value_or(0));
    stop_ = record.step + 1 >= steps_;
  }

 private:
  Told& told_;
  const std::int64_t steps_;
  std::atomic<bool>& stop_;
};

// The plan of one share of every rank's part of a batch. What is random counts the samples of the whole batch.
CompiledJob plan_of_share(CompiledJob compiled, TrainOptions::Share share) {
  const std::int64_t samples = compiled.batch.global / compiled.batch.data_ranks;  // of a rank
  for (Role& role : compiled.plan.roles)
    for (Program& program : role.programs)
      for (Issued& issued : program.instructions) {
        auto* launch = std::get_if<Launch>(&issued.instruction);
        if (launch == nullptr) continue;
        const Signature& signature = role.signatures[static_cast<std::size_t>(launch->signature)];
        if (!has(signature.op, Trait::random)) continue;
        const Shape& shape = signature.operands.front().shape;
        const std::int64_t sample = given_integer(signature, "sample").value_or(shape.elements() / shape[0]);
        for (const Axis axis : kBatchAxes) launch->origin.along(axis) *= share.of;
        launch->origin.base += share.index * samples * sample;
      }
  return compiled;
}

// Appends to `told`. Returns the path of the checkpoint. `at_end` is called by each rank; without it replicas are
// compared.
std::string run(LoadedJob loaded, const CompiledJob& compiled, const std::string& folder, std::int64_t steps,
                TrainOptions::Share share, Told& told, std::function<void(int, const Executor&)> at_end = {}) {
  loaded.job.checkpoint.dir = folder;
  std::atomic<bool> stop = false;
  Monitors monitors;
  monitors.push_back(std::make_unique<Recorder>(told, steps, stop));
  Replicas replicas(compiled.plan);
  TrainOptions options;
  options.stop = &stop;
  options.share = share;
  options.at_end =
      at_end ? std::move(at_end) : [&](int rank, const Executor& executor) { replicas.add(rank, executor); };
  const RunReport report = train(loaded, share.of > 1 ? plan_of_share(compiled, share) : compiled, monitors, options);
  told.different_replicas = replicas.different();
  return report.checkpoint;
}

// Of all shares, step by step.
std::vector<double> mean_losses(const std::vector<Told>& shares) {
  std::vector<double> losses(shares.front().losses.size());
  for (const Told& share : shares)
    for (std::size_t step = 0; step < losses.size(); ++step)
      losses[step] += share.losses[step] / static_cast<double>(shares.size());
  return losses;
}

// The checkpoint of a job as it starts.
checkpoint::Checkpoint initial_of(LoadedJob job, const std::string& folder, const Compiler& compile) {
  job.job.train.steps = 0;
  Told none;
  return checkpoint::open_checkpoint(run(job, compile(job), folder + "/initial", 0, {}, none));
}

LoadedJob with_f32_states(LoadedJob loaded) {
  const auto change = [](OptimizerJob& optimizer) {
    optimizer.states = States::f32;
    for (OptimizerJob& other : optimizer.others) other.states = States::f32;
  };
  change(loaded.job.train.optimizer);
  for (GroupJob& group : loaded.job.train.groups) change(group.optimizer);
  return loaded;
}

}  // namespace

Ended run_job(const LoadedJob& loaded, const std::string& folder, std::int64_t steps, const Compiler& compile) {
  Told told;
  CompiledJob compiled = compile(loaded);
  const std::string path = run(loaded, compiled, folder, steps, {}, told);
  return {std::move(told), std::move(compiled), checkpoint::open_checkpoint(path)};
}

Ended run_apart(const LoadedJob& ranks, const LoadedJob& one, const CompiledJob& apart, const std::string& folder,
                std::int64_t steps, const Compiler& compile) {
  const int count = apart.batch.data_ranks;
  LoadedJob share = one;
  share.job.train.batch.global /= count;
  share.job.checkpoint.resume = CheckpointJob::Resume::automatic;
  CompiledJob compiled = compile(share);
  std::vector<Told> told(static_cast<std::size_t>(count));
  SerialRounds rounds(ranks.job, apart, compiled, folder, [&](int index, const std::string& into, std::int64_t until) {
    run(share, compiled, into, until, {index, count}, told[static_cast<std::size_t>(index)]);
  });
  checkpoint::Checkpoint end = rounds.run(initial_of(one, folder, compile), std::min(steps, ranks.job.train.steps));
  Told all = told.front();
  all.losses = mean_losses(told);
  return {std::move(all), std::move(compiled), std::move(end)};
}

Ended run_coded(const LoadedJob& ranks, const LoadedJob& one, const CompiledJob& coded, const std::string& folder,
                std::int64_t steps, const Compiler& compile) {
  const int parts = SerialSteps::num_parts(ranks.job, coded);
  const LoadedJob by_moments = with_gradients_as_moments(under_ddp(ranks, coded, parts)),
                  one_by_moments = with_gradients_as_moments(one);
  const CompiledJob plan = without_sums(compile(by_moments)), plan_of_one = compile(one_by_moments);
  const auto until = [](LoadedJob job, std::int64_t step) {
    if (step == 0) job.job.train.steps = 0;
    return job;
  };
  Told untold, told_of_one;  // each rank steps by its own gradient, so what the ranks tell is of no use
  SerialSteps simulated(
      ranks.job, coded, folder,
      {.ranks =
           [&](int part, const std::string& into, std::int64_t step) {
             RankGradients gradients(plan.plan.mesh.world_size());
             run(until(by_moments, step), plan, into, step, {part, parts}, untold,
                 [&](int rank, const Executor& executor) { gradients.add(rank, executor); });
             return gradients;
           },
       .one = [&](const std::string& into,
                  std::int64_t step) { run(until(one_by_moments, step), plan_of_one, into, step, {}, told_of_one); }});
  Ended ended{
      {}, compile(one), simulated.run(initial_of(with_f32_states(one), folder, compile), steps), simulated.apart()};
  ended.norms = simulated.norms();
  ended.losses = told_of_one.losses;
  ended.dropped = told_of_one.dropped;
  return ended;
}

}  // namespace trainer
