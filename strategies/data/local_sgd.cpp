// Local SGD: every rank trains by itself for a round of steps, then all average their parameters and optimizer states.
// Sources: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; McMahan et al.,
// "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017. With an outer optimizer:
// Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023, algorithm 1 (states stay
// a rank's own). Delayed, the average of a round is made while the next one runs, and applied at its end: Douillard et
// al., "Streaming DiLoCo with overlapping communication", 2025, section 2.2, without an outer optimizer and for all
// parameters at once. Memory per rank: everything whole; f32 copies besides: one and a momentum with an outer
// optimizer, two if delayed. Sent per rank and round: 2 (n − 1)/n · (parameters and states), or of the parameters alone
// with an outer optimizer or delayed. Departs from the papers: the norm for clipping is a rank's own.
#include "strategies/strategies.h"

namespace trainer::strategies {
namespace {

class LocalSgd : public DataStrategy {
 public:
  /// Ranks that share samples make one step together.
  void gradient_ready(const Unit& unit, const Use& use, Step& step) const override {
    if (use.last) step.all_reduce_gradient(unit, kSequenceAxes);
  }
  void update(const Unit& unit, Step& step) const override { step.optimizer(unit); }
  bool averages() const override { return true; }
  void average(const Unit& unit, Step& step) const override { step.average(unit, kBatchAxes); }
};

class OuterLocalSgd final : public LocalSgd {
 public:
  explicit OuterLocalSgd(const OuterJob& job) : outer_{job.lr, job.momentum, job.nesterov} {}
  UnitLayout layout() const override { return {.states = {"outer_momentum"}, .own_states = true}; }
  void begin(const Unit& unit, Step& step) const override { step.copy_master(unit, "anchor"); }
  void average(const Unit& unit, Step& step) const override { step.outer_step(unit, kBatchAxes, outer_); }

 private:
  const OuterSettings outer_;
};

class DelayedLocalSgd final : public LocalSgd {
 public:
  bool delays() const override { return true; }
  void begin(const Unit& unit, Step& step) const override { step.copy_master(unit, "snapshot"); }
  void background(const Unit& unit, Step& step) const override { step.sum_copies(unit, kBatchAxes, "snapshot", "sum"); }
  void average(const Unit& unit, Step& step) const override {
    step.apply_delayed(unit, kBatchAxes, "sum", "snapshot");
    step.copy_master(unit, "snapshot");
  }
  void settle(const Unit& unit, Step& step) const override {
    LocalSgd::average(unit, step);
    step.copy_master(unit, "snapshot");
  }
};

}  // namespace

std::unique_ptr<DataStrategy> make_local_sgd(const DataStrategyJob& job, const ResolvedData&) {
  if (job.delayed) return std::make_unique<DelayedLocalSgd>();
  if (job.outer) return std::make_unique<OuterLocalSgd>(*job.outer);
  return std::make_unique<LocalSgd>();
}

}  // namespace trainer::strategies
