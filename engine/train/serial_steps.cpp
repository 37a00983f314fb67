// Shares are trained one after the other, a step at a time; between steps everything lies on the host, unit by unit, as
// in the flat buffers of the ranks.
#include "engine/train/serial_steps.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/check.h"
#include "engine/job/resolve.h"
#include "engine/train/train.h"

namespace trainer {
namespace {

using checkpoint::Checkpoint;
using checkpoint::TensorInfo;

ResolvedData resolved(const Job& job) { return resolve(job.strategy.data, false); }

int shares_of(const Job& job, const CompiledJob& ranks) {
  const ResolvedData data = resolved(job);
  const bool each = data.int8_reductions && data.reduce == Reduce::micro_batch;
  return ranks.batch.data_ranks * (each ? ranks.batch.micro_batches : 1);
}

}  // namespace

SerialSteps::SerialSteps(const Job& job, const CompiledJob& ranks, std::string folder, TrainShare train)
    : job_(job),
      ranks_(ranks),
      folder_(std::move(folder)),
      train_(std::move(train)),
      num_ranks_(ranks.batch.data_ranks),
      num_shares_(shares_of(job, ranks)) {}

bool SerialSteps::sends_codes(const Job& job) {
  const DataStrategyJob& data = job.strategy.data;
  return data.compression.kind != Compression::Kind::none || data.gather == SentAs::int8 ||
         data.reduce_dtype == SentAs::int8;
}

std::vector<Diagnostic> SerialSteps::mistakes_of(const LoadedJob& loaded, const CompiledJob& ranks) {
  std::vector<Diagnostic> mistakes;
  const Mesh& mesh = ranks.plan.mesh;
  const auto add = [&](std::string_view path, const std::string& what) {
    mistakes.push_back(loaded.at(path, what + ", where ranks send codes"));
  };
  for (const Axis axis : {Axis::context, Axis::expert})
    if (mesh.size(axis) > 1)
      add("strategy." + std::string(name_of(axis)), "verify simulates no " + std::string(name_of(axis)) + " axis");
  for (const Role& role : ranks.plan.roles)
    if (std::ranges::any_of(role.units, [](const Unit& unit) { return unit.trained() && !unit.stages.empty(); })) {
      add("strategy.pipeline", "verify does not simulate weights that several stages share (tied embeddings)");
      break;
    }
  if (!sends_codes(loaded.job)) return mistakes;  // of outer gradients it is the rounds that are simulated
  for (const OptimizerJob& optimizer : ranks.optimizers)
    if (optimizer.name == OptimizerName::muon || optimizer.states != States::f32)
      add("train.optimizer", "verify simulates adam, adamw, lion and sgd with states in f32");
  for (const Role& role : ranks.plan.roles)
    if (std::ranges::any_of(role.states, [](const State& state) { return state.initial.has_value(); }))
      add("model", "verify does not simulate models with states of their own (batch norm, balanced routers)");
  return mistakes;
}

LoadedJob SerialSteps::share_of(LoadedJob one) const {
  TrainJob& train = one.job.train;
  train.batch.global /= num_shares_;
  train.batch.micro = std::min(*train.batch.micro, train.batch.global);
  train.optimizer = OptimizerJob{};
  train.optimizer.name = OptimizerName::adam;
  train.optimizer.betas = {0, 0.5};
  train.optimizer.lr = 1e-30;  // the weights stay
  train.optimizer.eps = 1;
  train.groups.clear();
  train.clip_norm.reset();
  one.job.checkpoint.resume = CheckpointJob::Resume::automatic;
  return one;
}

Checkpoint SerialSteps::run(const Checkpoint& initial, std::int64_t steps) {
  begin(initial);
  for (int share = 0; share < num_shares_; ++share) train_(share, folder_of(share), 0);
  for (std::int64_t step = 0; step < steps; ++step) {
    const TensorValues next = next_of_shares();
    std::vector<Checkpoint> trained;
    for (int share = 0; share < num_shares_; ++share) {
      rewrite(folder_of(share), newest_checkpoint(folder_of(share)), next);
      train_(share, folder_of(share), step + 1);
      trained.push_back(newest_checkpoint(folder_of(share)));
    }
    double squares = 0;
    std::vector<Values> sums;
    for (UnitValues& of : units_) {
      std::vector<Values> gradients;
      for (const Checkpoint& share : trained) gradients.push_back(gradient_of(of.local, share));
      sums.push_back(reduced(of, gradients));
      squares += of.local.squares(sums.back());
    }
    norms_.push_back(std::sqrt(squares));
    const double factor = job_.train.clip_norm ? std::min(1.0, *job_.train.clip_norm / (norms_.back() + 1e-6)) : 1.0;
    for (std::size_t i = 0; i < units_.size(); ++i) update(units_[i], sums[i], factor, step);
  }
  return end(initial);
}

void SerialSteps::begin(const Checkpoint& initial) {
  for (const LocalUnit& local : local_units(ranks_.plan)) {
    const std::size_t elements = local.elements();
    Values master = local.flat([&](const std::string& name) {
      const TensorInfo* info = initial.tensors.find(name);
      CHECK(info != nullptr && info->dtype == DType::f32, "a checkpoint holds every weight: " + name);
      return values_of(initial.tensors, *info);
    });
    units_.push_back({local,
                      &ranks_.optimizers[static_cast<std::size_t>(local.unit().optimizer)],
                      std::move(master),
                      {Values(elements), Values(elements)},
                      {job_.strategy.data.compression, static_cast<std::size_t>(num_ranks_), elements}});
  }
}

// Each rank encodes its slice of the working copy.
SerialSteps::Values SerialSteps::sent_weights(const UnitValues& of) const {
  const DType compute = job_.precision.compute;
  const Unit& unit = of.local.unit();
  const int slices = ranks_.plan.mesh.group_size(unit.slice_axes());
  if (!resolved(job_).int8_gathers || slices == 1 || unit.compute != compute) return of.master;
  return as_int8(rounded_to(compute, of.master), static_cast<std::size_t>(slices));
}

// Shares go on from these, with moments of zero.
TensorValues SerialSteps::next_of_shares() const {
  TensorValues next;
  for (const UnitValues& of : units_) {
    of.local.put(sent_weights(of), "", next);
    for (const char* moment : {".exp_avg", ".exp_avg_sq"}) of.local.put(Values(of.master.size()), moment, next);
  }
  return next;
}

// Of the sum over the whole batch, which the share's own mean is a part of.
SerialSteps::Values SerialSteps::gradient_of(const LocalUnit& local, const Checkpoint& share) const {
  Values gradient = local.flat([&](const std::string& name) {
    const TensorInfo* info = share.tensors.find(name + ".exp_avg");
    CHECK(info != nullptr, "a share has the first moment of " + name);
    return values_of(share.tensors, *info);
  });
  for (double& value : gradient) value /= num_shares_;
  return gradient;
}

SerialSteps::Values SerialSteps::reduced(UnitValues& of, const std::vector<Values>& gradients) const {
  if (num_ranks_ == 1) return gradients.front();
  if (job_.strategy.data.compression.kind != Compression::Kind::none)
    return of.sums.sum(gradients, of.local.unit().sharded());
  Values sum(gradients.front().size());
  for (const Values& gradient : gradients) {
    const Values sent =
        resolved(job_).int8_reductions ? as_int8(gradient, static_cast<std::size_t>(num_ranks_)) : gradient;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += sent[i];
  }
  return sum;
}

void SerialSteps::update(UnitValues& of, const Values& gradient, double factor, std::int64_t step) const {
  const OptimizerJob& optimizer = *of.optimizer;
  const double lr = learning_rate(job_.train, optimizer, step), beta1 = optimizer.betas[0], beta2 = optimizer.betas[1],
               correction1 = 1 - std::pow(beta1, step + 1), correction2 = 1 - std::pow(beta2, step + 1);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i] * factor;
    double &w = of.master[i], &m = of.states[0][i], &v = of.states[1][i];
    if (static_cast<std::int64_t>(i) < of.local.unit().decay_elements) w -= lr * optimizer.weight_decay * w;
    switch (optimizer.name) {
      case OptimizerName::sgd:
        m = optimizer.momentum * m + g;
        w -= lr * (optimizer.nesterov ? g + optimizer.momentum * m : m);
        break;
      case OptimizerName::adam:
      case OptimizerName::adamw:
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        w -= lr / correction1 * m / (std::sqrt(v) / std::sqrt(correction2) + optimizer.eps);
        break;
      case OptimizerName::lion: {
        const double c = beta1 * m + (1 - beta1) * g;
        m = beta2 * m + (1 - beta2) * g;
        w -= lr * static_cast<double>((c > 0) - (c < 0));
        break;
      }
      case OptimizerName::muon:
        CHECK(false, "muon is not simulated");
    }
  }
}

Checkpoint SerialSteps::end(const Checkpoint& initial) const {
  TensorValues values;
  for (const UnitValues& of : units_) {
    of.local.put(of.master, "", values);
    std::size_t state = 0;
    for (const Slot& slot : of.local.unit().slots)
      if (slot.kind == Slot::Kind::state) of.local.put(of.states[state++], "." + slot.name, values);
  }
  const std::string folder = folder_ + "/end";
  rewrite(folder, initial, values);
  return newest_checkpoint(folder);
}

}  // namespace trainer
