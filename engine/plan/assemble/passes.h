// Passes: one program's way through the actions of its schedule. Each action becomes the nodes of its phase; around
// them units are gathered before their first use and released after the last, and gradients are handed to the data
// strategy once they are complete.
// Where an action takes a pair of micro-batches (AssembleOptions::together) interleave.h says in which order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/plan/assemble/emitted_step.h"
#include "engine/plan/assemble/emitter.h"
#include "engine/plan/assemble/fold.h"
#include "engine/plan/assemble/interleave.h"
#include "engine/plan/assemble/offloaded_activations.h"
#include "engine/plan/assemble/phases.h"

namespace trainer {

class Passes {
 public:
  /// REQUIRES: all arguments outlive it.
  Passes(Emitter& emit, Role& role, const AssembleOptions& options, int stage, const CutGraph& cut, EmittedStep& step);

  void run(GraphMemory& memory);

  /// Of each loop of the schedule's rounds, once it has run.
  const std::vector<RoundMarks>& marks() const { return marks_; }

 private:
  // One use of a unit: it is read from some node of an action to another.
  struct Use {
    std::size_t unit;
    int micro_batch, chunk;  // the first one of the action
    std::int32_t loop;       // of the action, in the program
    std::size_t next;        // use of the same unit; SIZE_MAX: none
    std::size_t next_pass;   // the same in this micro-batch
  };
  // Of an action: its nodes, and the order in which its micro-batches run them.
  struct Way {
    Phase phase;
    std::vector<Run> runs;
  };

  void mark(std::size_t action);
  std::int32_t loop_of(std::size_t action) const;
  const Way& way(const Action& action) const;
  void act(GraphMemory& memory, std::size_t index);
  void run_node(GraphMemory& memory, const Action& action, std::size_t i, int which);
  void open(std::size_t unit);
  void close(std::size_t unit);
  void complete(std::size_t unit);
  void share_with_neighbour(GraphMemory& memory, const Action& action);
  void find_uses();

  Emitter& emit_;
  Role& role_;
  const AssembleOptions& options_;
  const CutGraph& cut_;
  const int stage_;
  EmittedStep& step_;
  OffloadedActivations offloaded_;
  const std::vector<Action>& actions_;
  std::vector<std::map<Action::Kind, Way>> ways_;  // [chunk]
  std::vector<Use> uses_;                          // in order
  std::size_t opened_ = 0, asked_ = 0;             // of uses_
  std::vector<std::size_t> current_;               // of each unit: the use that is open
  std::vector<int> completions_;                   // of each unit: how often its gradients are still to be complete
  std::vector<RoundMarks> marks_;                  // of each loop
};

}  // namespace trainer
