// Reverse-mode differentiation: backwards over the forward nodes, each op's own rule adds the nodes of its gradient, so
// that gradients of the last layers come first. A value used several times gets its gradients added as they come, which
// frees each at once; a parameter gets one gradient value for each use, and the plan adds them up in place. A frozen
// parameter gets none, and nothing flows back below the first node that a trained one reaches.
#include <algorithm>
#include <string>
#include <unordered_map>

#include "engine/core/check.h"
#include "engine/core/index.h"
#include "engine/ops/op_def.h"
#include "engine/transform/transform.h"

namespace trainer {
namespace {

class Differentiation final : public GradientBuilder {
 public:
  Differentiation(Graph& graph, DType reduce) : graph_(graph), reduce_(reduce) {}

  void run() {
    CHECK(graph_.loss.sum != kNone, "a graph without a loss has no gradient");
    find_needed();
    const ValueId sum = graph_.loss.sum, auxiliary = graph_.loss.auxiliary;
    const bool both = auxiliary != kNone && needed(auxiliary);
    if (!needed(sum) && !both) return;  // nothing is trained: no backward pass, and no seed of one
    const std::size_t num_forward = graph_.nodes.size();
    gradients_.assign(graph_.values.size(), kNone);
    graph_.seed = graph_.add_value({.name = "seed", .spec = {DType::f32, {1}}, .kind = ValueKind::scalar});
    gradients_[at(sum)] = graph_.seed;
    if (both) gradients_[at(auxiliary)] = weighted_seed(auxiliary);
    for (std::size_t i = num_forward; i-- > 0;) backward(graph_.nodes[i]);
  }

  // GradientBuilder
  Graph& graph() override { return graph_; }
  bool needed(ValueId value) const override { return needed_[at(value)]; }
  DType reduce_dtype() const override { return reduce_; }

  std::vector<ValueId> node(const Node& forward, Op op, Attributes attributes, std::vector<ValueId> inputs,
                            std::vector<TensorDesc> outputs) override {
    return node_with_gradients(forward, op, std::move(attributes), std::move(inputs), std::move(outputs), {});
  }

  std::vector<ValueId> node_with_gradients(const Node& forward, Op op, Attributes attributes,
                                           std::vector<ValueId> inputs, std::vector<TensorDesc> outputs,
                                           std::vector<ValueId> parameters) override {
    Node node = backward_node(forward, op);
    node.attributes = std::move(attributes);
    node.inputs = std::move(inputs);
    const std::size_t num_values = outputs.size() - parameters.size();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      Value value{.name = {}, .spec = {outputs[i].dtype, outputs[i].shape}};
      if (i >= num_values) {
        value.kind = ValueKind::gradient;
        value.parameter = parameters[i - num_values];
        value.name = unique(graph_.value(value.parameter).name + ".grad");
      }
      node.outputs.push_back(graph_.add_value(std::move(value)));
    }
    added_.push_back(std::move(node));
    return added_.back().outputs;
  }

  ValueId alias(const Node& forward, ValueId value, const Shape& shape) override {
    Node node = backward_node(forward, Op::reshape);
    node.inputs = {value};
    node.outputs = {graph_.add_value(
        {.name = {}, .spec = {graph_.value(value).dtype(), shape}, .alias_of = graph_.storage(value)})};
    added_.push_back(std::move(node));
    return added_.back().outputs[0];
  }

 private:
  /// The seed of the auxiliary loss: that of the loss times its weight.
  ValueId weighted_seed(ValueId auxiliary) {
    const auto loss = std::ranges::find_if(
        graph_.nodes, [&](const Node& node) { return !node.outputs.empty() && node.outputs[0] == auxiliary; });
    Node node = backward_node(*loss, Op::scale);
    node.attributes = {{"factor", graph_.loss.auxiliary_weight}};
    node.inputs = {graph_.seed};
    node.outputs = {graph_.add_value({.name = loss->name + ".seed", .spec = {DType::f32, {1}}})};
    graph_.nodes.push_back(std::move(node));
    return graph_.nodes.back().outputs[0];
  }

  static Node backward_node(const Node& forward, Op op) {
    Node node = node_like(forward, forward.name, op);
    node.backward = true;
    if (is_collective(op)) node.axes = forward.axes;
    return node;
  }

  /// A gradient is needed of trainable parameters and of whatever is computed from them.
  void find_needed() {
    needed_.assign(graph_.values.size(), false);
    for (const Parameter& parameter : graph_.parameters) needed_[at(parameter.value)] = parameter.trainable;
    for (const Node& node : graph_.nodes)
      for (ValueId input : node.inputs)
        if (needed_[at(input)])
          for (ValueId output : node.outputs) needed_[at(output)] = true;
  }

  /// The rule may add nodes, so it gets a copy of the node: graph_.nodes is not touched before it is done.
  void backward(const Node& forward) {
    std::vector<ValueId> dy;
    for (ValueId output : forward.outputs) dy.push_back(gradients_[at(output)]);
    if (std::all_of(dy.begin(), dy.end(), [](ValueId gradient) { return gradient == kNone; }) ||
        !needed(forward.outputs[0]))
      return;
    const OpDef& def = definition(forward.op);
    CHECK(def.gradient, "no gradient of " + std::string(name_of(forward.op)));
    const Node copy = forward;
    const std::vector<ValueId> gradients = def.gradient(*this, copy, dy);
    CHECK(gradients.size() == copy.inputs.size(), "a gradient for each input of " + copy.name);
    for (std::size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i] != kNone) contribute(copy, copy.inputs[i], gradients[i]);
    for (const Node& node : added_)
      for (ValueId output : node.outputs)
        if (Value& value = graph_.value(output); value.name.empty())
          value.name = unique(copy.name + "." + std::string(name_of(node.op)));
    for (Node& node : added_) graph_.nodes.push_back(std::move(node));
    added_.clear();
  }

  /// One more gradient of `value`, by its consumer `node`.
  void contribute(const Node& consumer, ValueId value, ValueId gradient) {
    if (!needed(value) || graph_.value(value).kind == ValueKind::parameter) return;
    if (Value& fresh = graph_.value(gradient); fresh.name.empty())
      fresh.name = unique(graph_.value(value).name + ".grad");
    ValueId& sum = gradients_[at(value)];
    if (sum == kNone) {
      sum = gradient;
      return;
    }
    sum = node(consumer, Op::add, {}, {sum, gradient}, {graph_.value(value).desc()})[0];
    graph_.value(sum).name = unique(graph_.value(value).name + ".grad");
  }

  /// `name`, or "name.2" and so on where it is taken.
  std::string unique(const std::string& name) {
    const int count = ++names_[name];
    return count == 1 ? name : name + "." + std::to_string(count);
  }

  Graph& graph_;
  DType reduce_;
  std::vector<bool> needed_;
  std::vector<ValueId> gradients_;  ///< by forward value: the sum so far
  std::vector<Node> added_;         ///< nodes of the rule at work
  std::unordered_map<std::string, int> names_;
};

}  // namespace

void differentiate(Graph& graph, DType reduce) { Differentiation(graph, reduce).run(); }

}  // namespace trainer
