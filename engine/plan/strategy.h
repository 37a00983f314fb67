// What strategies are to the planner. A data strategy says how a unit of parameters lives, by a few hooks called while
// a step is assembled; a pipeline schedule says what each stage does in which order. Neither sees a device, a stream or
// an address; `Step` is the only verb they have.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer {

/// The point of the step at which a hook is called. Micro-batches are told apart because a schedule may mix them.
struct Use {
  bool ends_use = false;   ///< the unit is not read again soon (within the prefetch window)
  bool ends_pass = false;  ///< nor later in this micro-batch
  bool ends_step = false;  ///< nor in this program
  bool last = false;       ///< gradients: nothing more comes in this step
};

/// Outer optimizer of local SGD.
struct OuterSettings {
  double lr = 0.7;
  double momentum = 0.9;
  bool nesterov = true;
};

/// What a data strategy may ask for. Each call appends to the program; order across streams follows from the data.
class Step {
 public:
  virtual ~Step() = default;

  /// Gathers the working copy from the slices of all ranks, or from a secondary copy once there is one; unless it is
  /// there. `int8`: as codes of 8 bits, which all ranks decode, those too whose slices they are; only for units that
  /// are sliced, of the dtype of the graph.
  virtual void all_gather_working(const Unit& unit, bool int8) = 0;
  /// Of the gathered copy, each rank keeps its slice of the replica's: a secondary copy, until the program ends. Only
  /// of units that are sliced across replicas.
  virtual void keep_secondary(const Unit& unit) = 0;
  /// The gathered copy is not needed any more.
  virtual void release_working(const Unit& unit) = 0;

  /// Sums the unit's gradients over the ranks that differ along `axes`, in place.
  virtual void all_reduce_gradient(const Unit& unit, Axes axes) = 0;
  /// Sums the unit's gradients over the shard axis, each rank its slice, which is added to those of before in this
  /// step; the whole gradient starts over. `once`: there is only this one, and the slice stays where it lies. `int8`:
  /// the ranks exchange codes of 8 bits, and each sums those of its slice.
  virtual void reduce_scatter_gradient(const Unit& unit, bool once, bool int8) = 0;

  /// Updates the master weights, states and working copy (or this rank's slice of them) from the gradients as they were
  /// reduced.
  virtual void optimizer(const Unit& unit) = 0;

  /// master = mean over `axes` of the masters; the same for the optimizer's states.
  virtual void average(const Unit& unit, Axes axes) = 0;
  /// The anchor, which UnitLayout asks for, = the master.
  virtual void set_anchor(const Unit& unit) = 0;
  /// An SGD step of the anchor whose gradient is the mean way from the masters back to it, compressed on its way if the
  /// job says so; then master = anchor.
  virtual void outer_step(const Unit& unit, Axes axes, const OuterSettings& outer) = 0;
  /// The anchor and the master change places.
  virtual void swap_anchor(const Unit& unit) = 0;
  /// Keeps a copy of the master under a name of the strategy's: f32, there between steps.
  virtual void copy_master(const Unit& unit, const std::string& name) = 0;
  /// The copy `to` = the sum over `axes` of the copies `from`, while computation goes on.
  virtual void sum_copies(const Unit& unit, Axes axes, const std::string& from, const std::string& to) = 0;
  /// master += mean of `sum` − `mine`: what all ranks had then in place of what this rank had.
  virtual void apply_delayed(const Unit& unit, Axes axes, const std::string& sum, const std::string& mine) = 0;
};

/// What compressing a gradient asks for. Regions are of one unit, which every call is about.
class ReductionContext {
 public:
  virtual ~ReductionContext() = default;
  virtual int ranks() const = 0;
  /// This rank's slice of a whole that the ranks share.
  virtual Region own_slice(const Region& whole) const = 0;
  virtual DType reduce() const = 0;               ///< dtype of the gradient
  virtual bool sliced() const = 0;                ///< whether each rank needs but its own slice of the sum
  virtual Region gradient() = 0;                  ///< whole
  virtual Region residual() = 0;                  ///< f32, as many elements: what this rank could not send yet
  virtual Region packet(std::int64_t bytes) = 0;  ///< memory for what travels
  virtual void run(Op op, const Attributes& attributes,
                   const std::vector<std::pair<TensorDesc, Operand>>& operands) = 0;
  /// Over the ranks that the reduction is about.
  virtual void collective(CollectiveKind kind, DType dtype, const Region& input, const Region& output) = 0;
  /// What waits for a collective is issued when the next unit's gradients are ready, so that computation does not wait
  /// for it.
  virtual void later(std::function<void()> rest) = 0;
};

/// Takes the place of a gradient's reduction: sends less, and adds what it left out to the gradient of the next step.
class GradientCompression {
 public:
  virtual ~GradientCompression() = default;
  /// The unit's gradient, or this rank's slice of it, becomes, about, its sum over the ranks.
  virtual void reduce(const Unit& unit, ReductionContext& context) const = 0;
};

/// What ranks that train apart agreed on last: made of the masters when weights are loaded; or the model that is saved,
/// beside which each rank saves its own master.
enum class Anchor : std::uint8_t { none, made, model };

/// What of a unit a rank holds between steps.
struct UnitLayout {
  bool shard_states = false;      ///< master weights and states: its slice along the shard axis
  bool shard_parameters = false;  ///< working copy: its slice; whole copies are gathered for use
  bool across_replicas = false;   ///< slices are those of all replicas together
  std::vector<std::string>
      states{};  ///< f32 states of the strategy, beside the optimizer's and saved with them; 0 at first
  bool own_states =
      false;  ///< the optimizer's states are never brought together: each rank along the data axes has its own
  Anchor anchor = Anchor::none;
};

/// How parameters live. Stateless: everything is in the plan it makes.
class DataStrategy {
 public:
  virtual ~DataStrategy() = default;
  virtual UnitLayout layout() const { return {}; }
  /// Uses of units that gathers run ahead.
  virtual int prefetch() const { return 0; }

  /// A pass is about to read the unit's working copy.
  virtual void before_use(const Unit&, const Use&, Step&) const {}
  /// It has read it.
  virtual void after_use(const Unit&, const Use&, Step&) const {}
  /// The last gradient of `unit` in a pass has been computed (and added to those of before).
  virtual void gradient_ready(const Unit& unit, const Use& use, Step& step) const = 0;
  /// The norm is known: bring the unit up to date.
  virtual void update(const Unit& unit, Step& step) const = 0;

  // ---- Of strategies that let ranks drift apart for a round of steps ----

  virtual bool averages() const { return false; }
  /// Program `average`, at a round's end: brings the ranks together.
  virtual void average(const Unit&, Step&) const {}
  /// Programs `average`, each of every so many-th unit. Of several, the anchors are the model, and program `swap` shows
  /// it to evaluation and saving.
  virtual int parts() const { return 1; }
  virtual void swap(const Unit&, Step&) const {}
  /// Whether that is done a round late. Then program `step_averaging` takes the place of a round's first step and does
  /// this besides;
  virtual bool delays() const { return false; }
  virtual void background(const Unit&, Step&) const {}
  /// and program `settle` ends what is under way, before weights are saved.
  virtual void settle(const Unit&, Step&) const {}
  /// The masters were set from outside, alike on all ranks.
  virtual void begin(const Unit&, Step&) const {}
};

/// One thing a stage does with one micro-batch and one chunk of the model. `backward` is both parts of a backward pass;
/// schedules that split it use `backward_input` (what the stage before waits for) and, at any time after it,
/// `backward_weight` (gradients of parameters).
struct Action {
  enum class Kind : std::uint8_t { forward, backward, backward_input, backward_weight };
  Kind kind = Kind::forward;
  int micro_batch = 0;
  int chunk = 0;  ///< of the whole model, in forward order: 0 to stages · virtual stages − 1
  friend bool operator==(const Action&, const Action&) = default;
};

/// What every stage does, in order, and where each chunk lives.
struct Schedule {
  std::vector<int> stage_of_chunk;
  std::vector<std::vector<Action>> stages;
};

/// A pure function of (stages, virtual stages, micro-batches). REQUIRES: what the schedule's file states of them.
using ScheduleFunction = Schedule (*)(int stages, int virtual_stages, int micro_batches);

}  // namespace trainer
