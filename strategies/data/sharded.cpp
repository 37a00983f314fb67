// Sharded data parallelism: every rank of the shard axis owns one slice of each unit's master weights and states, and
// updates it alone. Sources are named in zero.cpp and fsdp.cpp. With a replicate axis beside it the slices' gradients
// are summed across the replicas, once a step. Departs from the papers: a slice of a unit crosses the boundaries of
// tensors, so that all slices are equal.
//
// Codes of 8 bits in place of weights and of gradients: Wang et al., "ZeRO++: Extremely Efficient Collective
// Communication for Giant Model Training", 2023, sections 3.1 and 3.3: 1.02 bytes an element, where n is not small.
// Departs from it: the reduction has one hop instead of two, so that each gradient is rounded once, and a block is of
// one tensor.
//
// A secondary copy of the weights: section 3.2. The ranks of a node (a replica, of R) share it, S of them, and hold P/S
// each beside what is sliced over all N = R S; a step gathers (N − 1)/N · P over all and then (S − 1)/S · P in a node,
// each time that weights are read again. Departs from it: it is made when a unit is first released in a step, and so
// serves the forward passes of later micro-batches too; of codes it is a copy of codes.
#include "strategies/data/sharded.h"

namespace trainer::strategies {
namespace {

class Sharded final : public DataStrategy {
 public:
  Sharded(const ResolvedData& settings, int prefetch) : settings_(settings), prefetch_(prefetch) {}

  UnitLayout layout() const override {
    return {
        .shard_states = true, .shard_parameters = settings_.shard_parameters, .across_replicas = settings_.secondary};
  }
  int prefetch() const override { return settings_.shard_parameters ? prefetch_ : 0; }

  void before_use(const Unit& unit, const Use&, Step& step) const override {
    if (settings_.shard_parameters) step.all_gather_working(unit, settings_.int8_gathers);
  }

  void after_use(const Unit& unit, const Use& use, Step& step) const override {
    if (!settings_.shard_parameters || !ends(use)) return;
    if (settings_.secondary && !use.ends_step) step.keep_secondary(unit);
    step.release_working(unit);
  }

  void gradient_ready(const Unit& unit, const Use& use, Step& step) const override {
    const bool once = settings_.reduce == Reduce::step;
    if (!once || use.last) step.reduce_scatter_gradient(unit, once, settings_.int8_reductions);
    if (use.last && !settings_.secondary) step.all_reduce_gradient(unit, Axes::of(Axis::replicate));
  }

  void update(const Unit& unit, Step& step) const override {
    step.optimizer(unit);
    if (!settings_.shard_parameters) step.all_gather_working(unit, false);
  }

 private:
  bool ends(const Use& use) const {
    switch (settings_.keep) {
      case Keep::pass:
        return use.ends_pass;
      case Keep::step:
        return use.ends_step;
      default:
        return use.ends_use;
    }
  }

  const ResolvedData settings_;
  const int prefetch_;
};

}  // namespace

std::unique_ptr<DataStrategy> make_sharded(const DataStrategyJob& job, const ResolvedData& data) {
  return std::make_unique<Sharded>(data, static_cast<int>(job.prefetch));
}

}  // namespace trainer::strategies
