// Ranks: one graph on the ranks of the tensor axis of its mesh at once, node by node, in f64. A node that stands for a
// collective is made of the values of all ranks; every other runs on each rank alone, with the origin of its part.
#pragma once

#include <vector>

#include "tests/reference/interpreter.h"

namespace trainer::reference {

class Ranks {
 public:
  /// `graph` must outlive this and may grow before a run.
  Ranks(const Graph& graph, int count) : graph_(graph), ranks_(static_cast<std::size_t>(count), Interpreter(graph)) {}

  Interpreter& rank(int index) { return ranks_[static_cast<std::size_t>(index)]; }
  /// The same value on every rank.
  void set(ValueId id, const Tensor& tensor);
  /// Runs all nodes.
  void run();

 private:
  void run_collective(const Node& node);

  const Graph& graph_;
  std::vector<Interpreter> ranks_;
};

}  // namespace trainer::reference
