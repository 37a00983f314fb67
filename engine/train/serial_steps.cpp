// A step at a time; between steps everything lies on the host, unit by unit, as in the flat buffers of the ranks.
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

std::vector<double> tensor_values(const checkpoint::Checkpoint& of, const std::string& name) {
  const TensorInfo* info = of.tensors.find(name);
  CHECK(info != nullptr, "a checkpoint holds every weight and moment: " + name);
  return values_of(of.tensors, *info);
}

}  // namespace

SerialSteps::SerialSteps(const Job& job, const CompiledJob& ranks, std::string folder, Training training)
    : job_(job),
      ranks_(ranks),
      folder_(std::move(folder)),
      training_(std::move(training)),
      num_parts_(num_parts(job, ranks)) {}

bool SerialSteps::sends_codes(const Job& job) {
  const DataStrategyJob& data = job.strategy.data;
  return data.compression.kind != Compression::Kind::none || data.gather == SentAs::int8 ||
         data.reduce_dtype == SentAs::int8;
}

bool SerialSteps::sends_weights(const Job& job) { return resolved(job).int8_gathers; }

bool SerialSteps::sends_micro_batches(const Job& job) {
  return resolved(job).int8_reductions && resolved(job).reduce == Reduce::micro_batch;
}

int SerialSteps::num_parts(const Job& job, const CompiledJob& ranks) {
  const int together = ranks.strategy.tensor.overlap ? 2 : 1;
  return sends_micro_batches(job) ? ranks.batch.micro_batches / together : 1;
}

Checkpoint SerialSteps::run(const Checkpoint& initial, std::int64_t steps) {
  begin(initial);
  train_to(0);
  for (std::int64_t step = 0; step < steps; ++step) {
    train_to(step + 1);
    std::vector<Values> gradients = summed_and_compared();
    double squares = 0;
    for (std::size_t i = 0; i < units_.size(); ++i) squares += units_[i].local.squares(gradients[i]);
    norms_.push_back(std::sqrt(squares));
    const double factor = job_.train.clip_norm ? std::min(1.0, *job_.train.clip_norm / (norms_.back() + 1e-6)) : 1.0;
    for (Values& gradient : gradients)
      for (double& value : gradient) value *= factor;
    update(gradients, step);
  }
  return end(initial);
}

void SerialSteps::begin(const Checkpoint& initial) {
  for (const LocalUnit& local : local_units(ranks_.plan)) {
    if (!local.unit().trained() && !sends_weights(job_)) continue;
    const std::size_t elements = local.elements(), ranks = local.ranks(local.stages().front()).size();
    Values master = local.flat([&](const std::string& name) { return tensor_values(initial, name); });
    if (!local.unit().trained()) {
      local.put(sent(local.unit(), master), "", frozen_);
      continue;
    }
    units_.push_back({local,
                      &ranks_.optimizers[static_cast<std::size_t>(local.unit().optimizer)],
                      {std::move(master), {Values(elements), Values(elements)}},
                      {local.stages().size(), {job_.strategy.data.compression, ranks, elements}}});
  }
}

// Each rank encodes its slice of the working copy.
SerialSteps::Values SerialSteps::sent(const Unit& unit, const Values& weights) const {
  const DType compute = job_.precision.compute;
  const int slices = ranks_.plan.mesh.group_size(unit.slice_axes());
  if (!sends_weights(job_) || slices == 1 || unit.compute != compute) return weights;
  return as_int8(rounded_to(compute, weights), static_cast<std::size_t>(slices));
}

// The model's states, such as running statistics, are those of the one rank.
void SerialSteps::put_states(TensorValues& into) const {
  const Checkpoint one = newest_checkpoint(folder_of_one());
  for (const Role& role : ranks_.plan.roles)
    for (const State& state : role.states)
      if (state.initial) into[state.name] = tensor_values(one, state.name);
}

// What a step starts from: the weights as they are sent, and moments of zero.
TensorValues SerialSteps::start_of_step() const {
  TensorValues start = frozen_;
  put_states(start);
  for (const UnitValues& of : units_) {
    of.local.put(sent(of.local.unit(), of.weights.master), "", start);
    for (const char* moment : {".exp_avg", ".exp_avg_sq"})
      of.local.put(Values(of.weights.master.size()), moment, start);
  }
  return start;
}

// Step 0 makes the checkpoints that the first step starts from.
void SerialSteps::train_to(std::int64_t step) {
  const TensorValues start = step > 0 ? start_of_step() : TensorValues{};
  const auto go_on = [&](const std::string& folder) {
    if (step > 0) rewrite(folder, newest_checkpoint(folder), start);
    return folder;
  };
  gradients_.clear();
  for (int part = 0; part < num_parts_; ++part)
    gradients_.push_back(training_.ranks(part, go_on(folder_of(part)), step));
  training_.one(go_on(folder_of_one()), step);
}

// Of the sum over the whole batch, which the part's own mean is a part of.
SerialSteps::Values SerialSteps::gradient_of(const LocalUnit& local, int part, int rank) const {
  Values gradient(local.elements());
  for (const UnitTensor& tensor : local.unit().tensors) {
    const std::vector<float>& held = gradients_[static_cast<std::size_t>(part)].of(rank, tensor.name);
    CHECK(std::ssize(held) == tensor.elements, "without codes a rank holds as much of " + tensor.name);
    for (std::size_t i = 0; i < held.size(); ++i)
      gradient[static_cast<std::size_t>(tensor.offset) + i] = static_cast<double>(held[i]) / num_parts_;
  }
  return gradient;
}

// Stages that share a unit sum what each of them has reduced.
SerialSteps::Sums SerialSteps::sums_of(UnitValues& of) const {
  const Unit& unit = of.local.unit();
  const auto slices = static_cast<std::size_t>(ranks_.plan.mesh.group_size(unit.slice_axes()));
  const bool codes = resolved(job_).int8_reductions && slices > 1;
  Sums sums{Values(of.local.elements()), Values(of.local.elements())};
  for (std::size_t i = 0; const std::int32_t stage : of.local.stages()) {
    std::vector<Values> gradients;
    for (const int rank : of.local.ranks(stage))
      for (int part = 0; part < num_parts_; ++part) {
        gradients.push_back(gradient_of(of.local, part, rank));
        add_to(sums.exact, gradients.back());
      }
    CompressedSums& compressed = of.sums[i++];
    if (job_.strategy.data.compression.kind != Compression::Kind::none && gradients.size() > 1) {
      CHECK(!unit.sharded() || slices == gradients.size(), "compressed gradients are summed once");
      add_to(sums.sent, compressed.sum(gradients, unit.sharded()));
    } else {
      for (const Values& gradient : gradients) add_to(sums.sent, codes ? as_int8(gradient, slices) : gradient);
    }
  }
  return sums;
}

std::vector<SerialSteps::Values> SerialSteps::summed_and_compared() {
  const Checkpoint one = newest_checkpoint(folder_of_one());
  std::vector<Values> gradients;
  double difference = 0, size = 0, sum = 0;
  for (UnitValues& of : units_) {
    auto [exact, sent] = sums_of(of);
    const Values truth = of.local.flat([&](const std::string& name) { return tensor_values(one, name + ".exp_avg"); });
    size += of.local.squares(truth);
    sum += of.local.squares(exact);
    for (std::size_t i = 0; i < exact.size(); ++i) exact[i] -= truth[i];
    difference += of.local.squares(exact);
    gradients.push_back(std::move(sent));
  }
  apart_.push_back(
      {difference == 0 ? 0 : std::sqrt(difference / size), sum == size ? 0 : std::fabs(std::sqrt(sum / size) - 1)});
  return gradients;
}

void SerialSteps::update(std::vector<Values>& gradients, std::int64_t step) {
  TensorValues whole;  // matrices that Muon orthogonalizes
  const auto is_muon = [](const UnitValues& of) { return of.optimizer->name == OptimizerName::muon; };
  for (std::size_t i = 0; i < units_.size(); ++i)
    if (UnitValues& of = units_[i]; is_muon(of))
      of.local.put(muon_direction(of.weights.states[0], *of.optimizer, gradients[i]), "", whole);
  for (const UnitValues& of : units_)
    for (const UnitTensor& tensor : of.local.unit().tensors)
      if (const auto found = whole.find(tensor.name); found != whole.end() && of.local.is_first())
        orthogonalize_serially(found->second, tensor.spec.whole, *of.optimizer);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    UnitValues& of = units_[i];
    if (is_muon(of)) gradients[i] = of.local.flat([&](const std::string& name) { return whole.at(name); });
    update_serially(of.weights, *of.optimizer, learning_rate(job_.train, *of.optimizer, step), step, gradients[i],
                    of.local.unit().decay_elements);
  }
}

Checkpoint SerialSteps::end(const Checkpoint& initial) const {
  TensorValues values;
  put_states(values);
  for (const UnitValues& of : units_) {
    of.local.put(of.weights.master, "", values);
    std::size_t state = 0;
    for (const Slot& slot : of.local.unit().slots)
      if (slot.kind == Slot::Kind::state) of.local.put(of.weights.states[state++], "." + slot.name, values);
  }
  const std::string folder = folder_ + "/end";
  rewrite(folder, initial, values);
  return newest_checkpoint(folder);
}

}  // namespace trainer
