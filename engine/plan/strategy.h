// What strategies are to the planner. A data strategy says how a unit of parameters lives, by a few hooks called while a
// step is assembled; a pipeline schedule says what each stage does in which order. Neither sees a device, a stream or an
// address; `Step` is the only verb they have.
#pragma once

#include <string>
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

/// What a data strategy may ask for. Each call appends to the program; order across streams follows from the data.
class Step {
 public:
  virtual ~Step() = default;

  /// Gathers the working copy from the slices of the shard axis, unless it is there.
  virtual void all_gather_working(const Unit& unit) = 0;
  /// The gathered copy is not needed any more.
  virtual void release_working(const Unit& unit) = 0;

  /// Sums the unit's gradients over the ranks that differ along `axes`, in place.
  virtual void all_reduce_gradient(const Unit& unit, Axes axes) = 0;
  /// Sums the unit's gradients over the shard axis, each rank its slice, which is added to those of before in this step; the whole
  /// gradient begins anew. `once`: there is but this one, and the slice stays where it lies.
  virtual void reduce_scatter_gradient(const Unit& unit, bool once) = 0;

  /// Updates the master weights, states and working copy (or this rank's slice of them) from the gradients as they were reduced.
  virtual void optimizer(const Unit& unit) = 0;

  /// master = mean over `axes` of the masters; the same for the optimizer's states.
  virtual void average_master(const Unit& unit, Axes axes) = 0;
  virtual void average_states(const Unit& unit, Axes axes) = 0;
};

/// What of a unit a rank holds between steps.
struct UnitLayout {
  bool shard_states = false;      ///< master weights and states: its slice along the shard axis
  bool shard_parameters = false;  ///< working copy: its slice; whole copies are gathered for use
};

/// How parameters live. Stateless: everything is in the plan it makes.
class DataStrategy {
 public:
  virtual ~DataStrategy() = default;
  virtual std::string name() const = 0;
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
  /// Of strategies that let ranks drift apart: what brings them together again, in a program of its own. True if there is such.
  virtual bool averages() const { return false; }
  virtual void average(const Unit&, Step&) const {}
};

/// One thing a stage does with one micro-batch and one chunk of the model. `backward` is both parts of a backward pass; schedules that
/// split it use `backward_input` (what the stage before waits for) and, at any time after it, `backward_weight` (gradients of parameters).
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
