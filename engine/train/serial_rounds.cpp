// Checkpoints of shares are read tensor by tensor, combined, and written again as of the same step.
#include "engine/train/serial_rounds.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/core/check.h"
#include "engine/train/rewritten.h"

namespace trainer {
namespace {

using checkpoint::Checkpoint;
using checkpoint::TensorInfo;

std::vector<double> mean_of(const std::vector<std::vector<double>>& shares) {
  std::vector<double> mean(shares.front().size(), 0.0);
  for (const std::vector<double>& share : shares)
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += share[i] / static_cast<double>(shares.size());
  return mean;
}

}  // namespace

SerialRounds::SerialRounds(const Job& job, const CompiledJob& ranks, const CompiledJob& one, std::string folder,
                           TrainShare train)
    : data_(job.strategy.data),
      steps_(job.train.steps),
      num_shares_(ranks.batch.data_ranks),
      folder_(std::move(folder)),
      train_(std::move(train)) {
  std::map<std::string, int> units;  // strided over those of all stages, of which stages may share some
  for (const Role& role : ranks.plan.roles)
    for (const Unit& unit : role.units) {
      if (!unit.trained()) continue;
      const int part = units.try_emplace(unit.name, static_cast<int>(std::ssize(units) % data_.parts)).first->second;
      for (const UnitTensor& tensor : unit.tensors) parts_[tensor.name] = part;
    }
  if (data_.outer && data_.outer->compression.kind != Compression::Kind::none)
    for (const LocalUnit& local : local_units(ranks.plan))
      if (local.unit().trained())
        compressed_.push_back(
            {local, {data_.outer->compression, static_cast<std::size_t>(num_shares_), local.elements()}});
  for (const Role& role : one.plan.roles)
    for (const Unit& unit : role.units)
      for (const Slot& slot : unit.slots)
        if (unit.trained() && slot.kind == Slot::Kind::state)
          for (const UnitTensor& tensor : unit.tensors) states_.insert(tensor.name + "." + slot.name);
}

std::string SerialRounds::folder_of(int share) const { return folder_ + "/share-" + std::to_string(share); }

// After the last step all parts are.
bool SerialRounds::due(std::int64_t step, int part) const {
  return step == steps_ || (step - data_.step_of_part(part)) % data_.every == 0;
}

std::int64_t SerialRounds::next_meeting(std::int64_t from, std::int64_t end) const {
  for (std::int64_t step = from + 1; step < end; ++step)
    for (int part = 0; part < static_cast<int>(data_.parts); ++part)
      if (due(step, part)) return step;
  return end;
}

Checkpoint SerialRounds::run(const Checkpoint& initial, std::int64_t end) {
  for (const auto& [name, part] : parts_) {
    const TensorInfo* tensor = initial.tensors.find(name);
    CHECK(tensor != nullptr && tensor->dtype == DType::f32, "a checkpoint holds every weight: " + name);
    Values values = values_of(initial.tensors, *tensor);
    if (data_.outer) momenta_[name].resize(values.size());
    if (data_.delayed) snapshots_[name].assign(static_cast<std::size_t>(num_shares_), values);
    anchors_[name] = std::move(values);
  }
  for (std::int64_t step = 0; step < end;) {
    step = next_meeting(step, end);
    for (int share = 0; share < num_shares_; ++share) train_(share, folder_of(share), step);
    meet(step, end);
  }
  return newest_checkpoint(folder_of(0));
}

void SerialRounds::meet(std::int64_t step, std::int64_t end) {
  std::vector<Checkpoint> old;
  for (int share = 0; share < num_shares_; ++share) old.push_back(newest_checkpoint(folder_of(share)));
  sum_outer_gradients(old, step, end);
  std::vector<std::unique_ptr<Rewritten>> made;
  for (int share = 0; share < num_shares_; ++share)
    made.push_back(std::make_unique<Rewritten>(folder_of(share), old[static_cast<std::size_t>(share)]));
  for (const Rewritten::Entry& entry : made.front()->order()) {
    const std::string& name = entry.tensor.name;
    if (!parts_.contains(name) && !states_.contains(name)) {
      for (const auto& one : made) one->keep(entry);
      continue;
    }
    std::vector<Values> shares;
    for (const Checkpoint& one : old) shares.push_back(values_of(one.tensors, entry.tensor));
    combine(name, shares, step, end);
    for (std::size_t share = 0; share < made.size(); ++share) made[share]->replace(entry, shares[share]);
  }
  for (const auto& one : made) one->commit();
}

bool SerialRounds::steps_outside(std::int64_t step, std::int64_t end, int part) const {
  return due(step, part) || (data_.parts == 1 && step == end);
}

// Unit by unit, since that is what is compressed together.
void SerialRounds::sum_outer_gradients(const std::vector<Checkpoint>& shares, std::int64_t step, std::int64_t end) {
  outer_gradients_.clear();
  for (CompressedUnit& of : compressed_) {
    if (!steps_outside(step, end, parts_.at(of.local.unit().tensors.front().name))) continue;
    std::vector<Values> gradients;
    for (const Checkpoint& share : shares)
      gradients.push_back(of.local.flat([&](const std::string& name) {
        Values gradient = anchors_.at(name);
        const Values weights = values_of(share.tensors, *share.tensors.find(name));
        for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] -= weights[i];
        return gradient;
      }));
    Values sum = of.sums.sum(gradients, false);
    for (double& value : sum) value /= num_shares_;
    of.local.put(sum, "", outer_gradients_);
  }
}

void SerialRounds::combine(const std::string& name, std::vector<Values>& shares, std::int64_t step, std::int64_t end) {
  const auto part = parts_.find(name);
  if (part == parts_.end()) {  // a state
    if (!data_.outer && (!data_.delayed || step == end)) std::ranges::fill(shares, mean_of(shares));
    return;
  }
  if (data_.outer) {
    Values &anchor = anchors_.at(name), &u = momenta_.at(name);
    if (steps_outside(step, end, part->second)) {
      const auto compressed = outer_gradients_.find(name);
      const Values mean = mean_of(shares);
      for (std::size_t i = 0; i < anchor.size(); ++i) {
        const double g = compressed != outer_gradients_.end() ? compressed->second[i] : anchor[i] - mean[i];
        u[i] = data_.outer->momentum * u[i] + g;
        anchor[i] -= data_.outer->lr * (data_.outer->nesterov ? g + data_.outer->momentum * u[i] : u[i]);
      }
      std::ranges::fill(shares, anchor);
    }
    if (step == end) std::ranges::fill(shares, anchor);  // the model that is saved
    return;
  }
  if (!data_.delayed) {
    std::ranges::fill(shares, mean_of(shares));
    return;
  }
  std::vector<Values>& snapshots = snapshots_.at(name);
  const Values mean = mean_of(snapshots);
  for (std::size_t share = 0; share < shares.size(); ++share)
    for (std::size_t i = 0; i < mean.size(); ++i) shares[share][i] += mean[i] - snapshots[share][i];
  snapshots = shares;
  if (step == end) std::ranges::fill(shares, mean_of(shares));
}

}  // namespace trainer
