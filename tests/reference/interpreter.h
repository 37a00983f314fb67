// Interpreter: runs the nodes of a graph in order by the reference, in f64, with every value kept.
#pragma once

#include <optional>
#include <vector>

#include "engine/graph/graph.h"
#include "tests/reference/reference.h"

namespace trainer::reference {

class Interpreter {
 public:
  /// `graph` must outlive the interpreter and may grow between runs.
  explicit Interpreter(const Graph& graph) : graph_(graph) {}

  /// Gives a value that no node writes (or replaces one). REQUIRES: the tensor has the value's shape.
  void set(ValueId id, Tensor tensor);
  /// Runs nodes [first, last), all of them by default, as the piece that `origin` says.
  void run(std::size_t first = 0, std::size_t last = SIZE_MAX, std::int64_t origin = 0);
  /// Runs one node, as the piece that `origin` (kernels::Call::origin) says.
  void run_node(const Node& node, std::int64_t origin = 0);
  /// The value, under its own shape. REQUIRES: it was set or written.
  Tensor get(ValueId id) const;

 private:
  const Graph& graph_;
  std::vector<std::optional<Tensor>> values_;  // by storage
};

/// The gradient of parameter `parameter`: the sum of its contributions in `graph`.
Tensor parameter_gradient(const Graph& graph, const Interpreter& values, ValueId parameter);

}  // namespace trainer::reference
