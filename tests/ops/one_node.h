// OneNode: a graph of one golden case and, where the op has one, its gradient, as the op's declaration makes it.
#pragma once

#include <vector>

#include "engine/ops/op_def.h"
#include "tests/goldens/golden.h"

namespace trainer::goldens {

struct OneNode {
  Graph graph;
  std::size_t num_forward = 0;  ///< nodes of the forward pass
  std::vector<ValueId> inputs;  ///< operands of the node
  std::vector<ValueId> outputs;
  ValueId dout = kNone;            ///< gradient of output 0 (of a loss: its seed)
  std::vector<ValueId> gradients;  ///< by input; kNone where there is none
};

/// Values have the dtypes that a graph with these compute and reduce dtypes would give them.
OneNode one_node(const Case& of, DType compute, DType reduce);

}  // namespace trainer::goldens
