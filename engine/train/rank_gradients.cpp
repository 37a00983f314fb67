// A plan is changed after it is made: a sum of gradients becomes one over a group of one rank.
#include "engine/train/rank_gradients.h"

#include <algorithm>
#include <utility>

#include "engine/core/check.h"

namespace trainer {

LoadedJob with_gradients_as_moments(LoadedJob loaded) {
  TrainJob& train = loaded.job.train;
  train.optimizer = OptimizerJob{};
  train.optimizer.name = OptimizerName::adam;
  train.optimizer.betas = {0, 0.5};
  train.optimizer.lr = 1e-30;
  train.optimizer.eps = 1;
  train.groups.clear();
  train.lr_schedule = LrScheduleJob{.name = ScheduleName::constant};
  train.clip_norm.reset();
  loaded.job.checkpoint.resume = CheckpointJob::Resume::automatic;
  return loaded;
}

LoadedJob under_ddp(LoadedJob loaded, const CompiledJob& compiled, int parts) {
  loaded.job.strategy = compiled.strategy;
  loaded.job.strategy.data = DataStrategyJob{};  // DDP
  loaded.job.strategy.profile = Profile::none;
  loaded.job.strategy.offload = OffloadJob{};
  loaded.job.train.batch.global = compiled.batch.global / parts;
  loaded.job.train.batch.micro = compiled.batch.micro;
  return loaded;
}

CompiledJob without_sums(CompiledJob compiled) {
  for (Role& role : compiled.plan.roles)
    for (Program& program : role.programs)
      for (Issued& issued : program.instructions) {
        auto* collective = std::get_if<Collective>(&issued.instruction);
        if (collective == nullptr || issued.why.phase != Provenance::Phase::reduce) continue;
        CHECK(collective->kind == CollectiveKind::all_reduce, "gradients are summed in place under DDP");
        collective->axes = collective->axes - (kTokenAxes | Axis::pipeline);
        collective->stages.clear();
      }
  return compiled;
}

void RankGradients::add(int rank, const Executor& executor) {
  std::map<std::string, std::vector<float>> held;
  for (const Unit& unit : executor.role().units) {
    if (!unit.trained()) continue;
    const Slot* moment = unit.find(Slot::Kind::state, "exp_avg");
    CHECK(moment != nullptr && moment->spec.dtype() == DType::f32 && !unit.sharded(), "a rank has all of a gradient");
    std::vector<float> values(static_cast<std::size_t>(unit.elements));
    executor.read(moment->region, values.data());
    for (const UnitTensor& tensor : unit.tensors)
      held[tensor.name].assign(values.begin() + tensor.offset, values.begin() + tensor.offset + tensor.elements);
  }
  const std::lock_guard lock(mutex_);
  of_ranks_[static_cast<std::size_t>(rank)] = std::move(held);
}

const std::vector<float>& RankGradients::of(int rank, const std::string& parameter) const {
  const auto& held = of_ranks_[static_cast<std::size_t>(rank)];
  const auto found = held.find(parameter);
  CHECK(found != held.end(), "rank " + std::to_string(rank) + " has a gradient of " + parameter);
  return found->second;
}

}  // namespace trainer
