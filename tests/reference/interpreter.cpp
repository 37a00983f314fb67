// Node by node, each by the reference of its op.
#include "tests/reference/interpreter.h"

#include "engine/core/check.h"
#include "engine/ops/op_def.h"

namespace trainer::reference {

void Interpreter::set(ValueId id, Tensor tensor) {
  const Shape shape = graph_.local_shape(id);
  CHECK(tensor.shape.elements() == shape.elements(),
        graph_.value(id).name + " is " + shape.str() + ", not " + tensor.shape.str());
  values_.resize(graph_.values.size());
  values_[static_cast<std::size_t>(graph_.storage(id))] = std::move(tensor);
}

Tensor Interpreter::get(ValueId id) const {
  const auto at = static_cast<std::size_t>(graph_.storage(id));
  CHECK(at < values_.size() && values_[at].has_value(), graph_.value(id).name + " has no value yet");
  Tensor tensor = *values_[at];
  tensor.shape = graph_.local_shape(id);
  return tensor;
}

void Interpreter::run(std::size_t first, std::size_t last, std::int64_t origin) {
  for (std::size_t i = first; i < std::min(last, graph_.nodes.size()); ++i) run_node(graph_.nodes[i], origin);
}

void Interpreter::run_node(const Node& node, std::int64_t origin) {
  std::vector<Tensor> inputs;
  for (ValueId id : node.inputs) inputs.push_back(get(id));
  std::vector<Shape> shapes;
  for (ValueId id : node.outputs) shapes.push_back(graph_.local_shape(id));
  std::vector<Tensor> outputs = reference::run(node.op, signature_of(graph_, node).attributes, inputs, shapes,
                                               origin + origin_of(graph_, node).base);
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    if (graph_.value(node.outputs[o]).alias_of == kNone) set(node.outputs[o], std::move(outputs[o]));
  }
}

Tensor parameter_gradient(const Graph& graph, const Interpreter& values, ValueId parameter) {
  Tensor sum(graph.local_shape(parameter));
  for (std::size_t id = 0; id < graph.values.size(); ++id) {
    const Value& value = graph.values[id];
    if (value.kind != ValueKind::gradient || value.parameter != parameter) continue;
    const Tensor part = values.get(static_cast<ValueId>(id));
    for (std::int64_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  return sum;
}

}  // namespace trainer::reference
