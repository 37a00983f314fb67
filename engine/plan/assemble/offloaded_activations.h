// OffloadedActivations: what a backward pass needs of the forward pass leaves the device behind its last use there, and
// comes back for the backward pass. Source: Rhu et al., "vDNN: Virtualized Deep Neural Networks for Scalable,
// Memory-Efficient Neural Network Design", 2016, section 3.2.
//
// Forward: a value is moved away behind the last node that reads it. Backward: it comes when the pass begins with the
// block before the one that reads it first, so it travels while that block computes. The last block keeps its own, for
// they would have to come back at once. With the block's kept bytes K, some 2 K are on the device at a time in place of
// K for each block, and every byte that leaves passes the link twice.
//
// Off the device each value has one place, which the next micro-batch takes over: passes come one after the other, so
// this is for steps without a pipeline.
#pragma once

#include <vector>

#include "engine/plan/assemble/emitter.h"
#include "engine/plan/assemble/phases.h"

namespace trainer {

class OffloadedActivations {
 public:
  /// Nothing leaves.
  OffloadedActivations() = default;
  /// Of the graph whose passes these are.
  OffloadedActivations(const Graph& graph, Space space, const Phase& forward, const Phase& backward);

  /// Before node `index` of a backward pass: moves here what is to come.
  void before_backward(Emitter& emit, GraphMemory& memory, std::size_t index, int micro_batch);
  /// Behind node `index` of a forward pass: moves away what is not read there any more.
  void after_forward(Emitter& emit, GraphMemory& memory, std::size_t index, int micro_batch);

 private:
  struct Kept {
    ValueId value;
    NameId name = -1;
    BufferId home = -1;  ///< made when it first leaves
  };
  void find_kept(const Graph& graph, const Phase& forward, const Phase& backward);

  Space space_ = Space::device;
  std::vector<Kept> kept_;
  std::vector<std::vector<std::size_t>> leaves_, comes_;  // of each node of the forward, and of the backward pass
};

}  // namespace trainer
