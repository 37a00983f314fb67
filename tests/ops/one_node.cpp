// How a graph is made of one node, its inputs and its parameters.
#include "tests/ops/one_node.h"

#include "engine/core/check.h"

namespace trainer::goldens {

namespace {

bool is_loss(Op op) {
  switch (op) {
    case Op::cross_entropy:
    case Op::cross_entropy_and_grad:
    case Op::cross_entropy_gathered:
    case Op::mse:
    case Op::cross_entropy_count:
    case Op::correct_count:
    case Op::correct_count_gathered:
    case Op::sequence_nll:
    case Op::dpo_loss:
    case Op::dpo_count:
      return true;
    default:
      return false;
  }
}

/// Index of the first operand that is a parameter.
std::size_t first_parameter(Op op) {
  switch (op) {
    case Op::positions:
    case Op::parameter:
      return 0;
    case Op::embedding:
    case Op::linear:
    case Op::layer_norm:
    case Op::rms_norm:
    case Op::conv2d:
    case Op::conv1d:
    case Op::batch_norm:
      return 1;
    case Op::batch_norm_apply:
    case Op::expert_linear:
      return 2;
    default:
      return SIZE_MAX;
  }
}

DType output_dtype(Op op, std::size_t index, DType compute) {
  if (op == Op::document_positions || op == Op::expert_capacity || op == Op::expert_slots ||
      (op == Op::route && index > 0))
    return DType::i32;
  if (op == Op::route || op == Op::row_dots) return DType::f32;
  if (op == Op::dpo_loss) return DType::f64;
  if (index > 0 && op != Op::split) return op == Op::max_pool2d ? DType::i32 : DType::f32;
  return is_loss(op) ? DType::f64 : compute;
}

Value described(std::string name, DType dtype, const Shape& shape) {
  Value value;
  value.name = std::move(name);
  value.spec.format = dtype;
  value.spec.whole = shape;
  return value;
}

/// Records gradient nodes behind the forward ones.
class Recorder final : public GradientBuilder {
 public:
  Recorder(Graph& graph, DType reduce) : graph_(graph), reduce_(reduce) {}

  Graph& graph() override { return graph_; }
  bool needed(ValueId value) const override { return graph_.value(value).kind != ValueKind::input; }
  DType reduce_dtype() const override { return reduce_; }

  std::vector<ValueId> node(const Node& forward, Op op, Attributes attributes, std::vector<ValueId> inputs,
                            std::vector<TensorDesc> outputs) override {
    return node_with_gradients(forward, op, std::move(attributes), std::move(inputs), std::move(outputs), {});
  }

  ValueId alias(const Node& forward, ValueId value, const Shape& shape) override {
    Value made =
        described(forward.name + ".alias" + std::to_string(graph_.values.size()), graph_.value(value).dtype(), shape);
    made.alias_of = graph_.storage(value);
    Node node;
    node.name = forward.name;
    node.op = Op::reshape;
    node.inputs = {value};
    node.outputs = {graph_.add_value(std::move(made))};
    node.backward = true;
    graph_.nodes.push_back(node);
    return node.outputs[0];
  }

  std::vector<ValueId> node_with_gradients(const Node& forward, Op op, Attributes attributes,
                                           std::vector<ValueId> inputs, std::vector<TensorDesc> outputs,
                                           std::vector<ValueId> parameters) override {
    Node made;
    made.name = forward.name;
    made.op = op;
    made.attributes = std::move(attributes);
    made.inputs = std::move(inputs);
    made.backward = true;
    const std::size_t num_values = outputs.size() - parameters.size();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      Value value =
          described(forward.name + ".grad" + std::to_string(graph_.values.size()), outputs[i].dtype, outputs[i].shape);
      if (i >= num_values) {
        value.kind = ValueKind::gradient;
        value.parameter = parameters[i - num_values];
      }
      made.outputs.push_back(graph_.add_value(std::move(value)));
    }
    graph_.nodes.push_back(made);
    return made.outputs;
  }

 private:
  Graph& graph_;
  DType reduce_;
};

void add_forward(const Case& of, DType compute, OneNode& to) {
  Node node;
  node.name = of.name;
  node.op = of.op;
  node.attributes = of.attributes;
  for (std::size_t i = 0; i < of.in.size(); ++i) {
    Value value = described(of.name + ".in" + std::to_string(i), of.integer[i] ? DType::i32 : compute, of.in[i].shape);
    value.kind = of.integer[i] || !of.gradients.contains(static_cast<int>(i)) ? ValueKind::input
                 : i >= first_parameter(of.op)                                ? ValueKind::parameter
                                                                              : ValueKind::activation;
    const bool statistic = of.op == Op::batch_norm && i > 2;
    if (value.kind == ValueKind::input && !of.integer[i] && (of.op == Op::mse || statistic))
      value.spec.format = DType::f32;
    if ((of.op == Op::route_grad && i != 1 && !of.integer[i]) || (of.op == Op::weigh && i == 1) ||
        (of.op == Op::route && i == 1))
      value.spec.format = DType::f32;
    node.inputs.push_back(to.graph.add_value(std::move(value)));
  }
  for (std::size_t i = 0; i < of.out.size(); ++i) {
    node.outputs.push_back(to.graph.add_value(
        described(of.name + ".out" + std::to_string(i), output_dtype(of.op, i, compute), of.out[i].shape)));
  }
  to.inputs = node.inputs;
  to.outputs = node.outputs;
  to.graph.nodes.push_back(std::move(node));
  to.num_forward = 1;
}

/// Of the first output `dout`, of all others none.
std::vector<ValueId> gradients_of_outputs(std::size_t count, ValueId dout) {
  std::vector<ValueId> gradients(count, kNone);
  gradients[0] = dout;
  return gradients;
}

/// The gradient of input `i`: what the declaration returned, or else the gradient of that parameter.
ValueId gradient_of(const Graph& graph, const std::vector<ValueId>& returned, std::size_t i, ValueId input) {
  if (i < returned.size() && returned[i] != kNone) return returned[i];
  for (std::size_t id = 0; id < graph.values.size(); ++id) {
    if (graph.values[id].kind == ValueKind::gradient && graph.values[id].parameter == input)
      return static_cast<ValueId>(id);
  }
  return kNone;
}

}  // namespace

OneNode one_node(const Case& of, DType compute, DType reduce) {
  OneNode result;
  add_forward(of, compute, result);
  if (of.gradients.empty()) return result;
  const bool loss = is_loss(of.op);
  result.dout = result.graph.add_value(
      described(of.name + ".dout", loss ? DType::f32 : output_dtype(of.op, 0, compute), of.dout.shape));
  if (loss) result.graph.seed = result.dout;
  Recorder recorder(result.graph, reduce);
  const Node forward = result.graph.nodes[0];  // a copy: the list grows
  const OpDef& op = definition(of.op);
  CHECK(static_cast<bool>(op.gradient), of.name + " has no gradient");
  const std::vector<ValueId> returned =
      op.gradient(recorder, forward, gradients_of_outputs(of.out.size(), result.dout));
  for (std::size_t i = 0; i < result.inputs.size(); ++i) {
    result.gradients.push_back(gradient_of(result.graph, returned, i, result.inputs[i]));
  }
  return result;
}

}  // namespace trainer::goldens
