// Sharded data parallelism: every rank of the shard axis owns one slice of each unit's master weights and states, and updates it alone.
//
// Sources: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020, section 5 (stages 1 to 3);
// Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023, section 3 (units, prefetch, hybrid).
// Memory per rank, with N ranks along the shard axis, and what it sends per step with M micro-batches (P, G bytes of working copy and gradients):
//
//   parameters whole, reduce at the step's end    states 1/N   (N − 1)/N · (G + P)        ZeRO-1
//   parameters whole, reduce each micro-batch     + gradients 1/N, M reductions           ZeRO-2
//   parameters 1/N, kept for a use                all 1/N, M (2 P + G)                    ZeRO-3, FULL_SHARD
//   parameters 1/N, kept for a pass               whole between forward and backward, M (P + G)   SHARD_GRAD_OP
//   parameters 1/N, kept for the step             one gather, P + G
//
// With a replicate axis beside it (HYBRID_SHARD) the slices' gradients are summed across the replicas once a step.
// Departs from the papers: a slice of a unit crosses the boundaries of tensors, so that all slices are equal.
#include "strategies/data/sharded.h"

namespace trainer::strategies {
namespace {

class Sharded final : public DataStrategy {
 public:
  explicit Sharded(ShardedSettings settings) : settings_(std::move(settings)) {}

  std::string name() const override { return settings_.name; }
  UnitLayout layout() const override { return {.shard_states = true, .shard_parameters = settings_.shard_parameters}; }
  int prefetch() const override { return settings_.shard_parameters ? settings_.prefetch : 0; }

  void before_use(const Unit& unit, const Use&, Step& step) const override {
    if (settings_.shard_parameters) step.all_gather_working(unit);
  }

  void after_use(const Unit& unit, const Use& use, Step& step) const override {
    if (settings_.shard_parameters && ends(use)) step.release_working(unit);
  }

  void gradient_ready(const Unit& unit, const Use& use, Step& step) const override {
    const bool once = settings_.reduce == ReduceWhen::step;
    if (!once || use.last) step.reduce_scatter_gradient(unit, once);
    if (use.last) step.all_reduce_gradient(unit, Axes::of(Axis::replicate));
  }

  void update(const Unit& unit, Step& step) const override {
    step.optimizer(unit);
    if (!settings_.shard_parameters) step.all_gather_working(unit);
  }

 private:
  bool ends(const Use& use) const {
    switch (settings_.keep) {
      case KeepGathered::use: return use.ends_use;
      case KeepGathered::pass: return use.ends_pass;
      case KeepGathered::step: return use.ends_step;
    }
    return true;
  }

  const ShardedSettings settings_;
};

}  // namespace

std::unique_ptr<DataStrategy> make_sharded(const ShardedSettings& settings) { return std::make_unique<Sharded>(settings); }

}  // namespace trainer::strategies
