// Local SGD: every rank trains by itself for a round of steps, then all average their parameters and optimizer states.
// Sources: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; McMahan et al.,
// "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017. With an outer optimizer:
// Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023, algorithm 1 (states stay
// a rank's own). In parts: Douillard et al., "Streaming DiLoCo with overlapping communication", 2025, section 2.2.1:
// unit i belongs to part i modulo their number (strided), and part p of P is averaged after step (p + 1) · every / P of
// each round. What ranks agreed on last, part by part, is the model that is evaluated and saved; beside it each rank
// saves its own weights. Delayed, the average of a round is made while the next one runs, and applied at its end: the
// same paper, section 2.2.2, without an outer optimizer and for all parameters at once.
//
// Memory per rank: all parameters and states. An outer optimizer adds two f32 copies of the parameters, an anchor and a
// momentum, and a residual if outer gradients are compressed; `delayed` adds two copies. Sent per rank and round:
// 2 (n − 1)/n · (parameters and states), with an outer optimizer or delayed 2 (n − 1)/n · parameters. All of it is sent
// at once, or in parts about 1/P at a time. strategies/compression says what compressed outer gradients take.
//
// Departs from the papers: the norm for clipping is a rank's own. After the last step all parts are averaged, so that
// no step is lost. What a compression did not send is added to the outer gradient of the next round. Parts are averaged
// between two steps and applied as they are (the paper's τ = 0, α = 1): a transfer beside the steps that follow would
// take a step program for each part, as long as the step itself.
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
  OuterLocalSgd(const OuterJob& job, std::int64_t parts)
      : outer_{job.lr, job.momentum, job.nesterov}, parts_(static_cast<int>(parts)) {}
  UnitLayout layout() const override {
    return {.states = {"outer_momentum"}, .own_states = true, .anchor = parts_ > 1 ? Anchor::model : Anchor::made};
  }
  void begin(const Unit& unit, Step& step) const override { step.set_anchor(unit); }
  void average(const Unit& unit, Step& step) const override { step.outer_step(unit, kBatchAxes, outer_); }
  int parts() const override { return parts_; }
  void swap(const Unit& unit, Step& step) const override { step.swap_anchor(unit); }

 private:
  const OuterSettings outer_;
  const int parts_;
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
  if (job.outer) return std::make_unique<OuterLocalSgd>(*job.outer, job.parts);
  return std::make_unique<LocalSgd>();
}

}  // namespace trainer::strategies
