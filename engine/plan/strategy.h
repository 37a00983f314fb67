// What strategies are to the planner. A data strategy says how a unit of parameters lives, by a few hooks called while a
// step is assembled; a pipeline schedule says what each stage does in which order. Neither sees a device, a stream or an
// address; `Step` is the only verb they have.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer {

/// The point of the step at which a hook is called.
struct Use {
  int micro_batch = 0;
  bool first = false;  ///< the first micro-batch of the step
  bool last = false;   ///< the last
};

/// What a data strategy may ask for. Each call appends to the step; order across streams follows from the data.
class Step {
 public:
  virtual ~Step() = default;
  /// Sums the unit's gradients over the ranks that differ along `axes`, while computation goes on.
  virtual void all_reduce_gradient(const Unit& unit, Axes axes) = 0;
  /// Updates all of the unit's master weights, states and working copy from its gradients.
  virtual void optimizer(const Unit& unit) = 0;
};

/// How parameters live. Stateless: everything is in the plan it makes.
class DataStrategy {
 public:
  virtual ~DataStrategy() = default;
  virtual std::string name() const = 0;
  /// The last gradient of `unit` in this micro-batch has been computed (and added to those before).
  virtual void gradient_ready(const Unit& unit, const Use& use, Step& step) const = 0;
  /// The norm is known: bring the unit up to date.
  virtual void update(const Unit& unit, Step& step) const = 0;
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
