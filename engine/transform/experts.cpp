// One walk over the nodes. Parameters keep their names, which are those of the node of the file and a part of it.
#include "engine/transform/experts.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/core/op_record.h"
#include "engine/ops/router_states.h"

namespace trainer {
namespace {

class Placing {
 public:
  Placing(Graph& graph, bool training, bool capacities) : graph_(graph), training_(training), capacities_(capacities) {}

  void run() {
    for (Node& node : std::exchange(graph_.nodes, {})) {
      if (node.op == Op::router)
        router(node);
      else if (node.op == Op::experts)
        experts(node);
      else
        graph_.nodes.push_back(std::move(node));
    }
  }

 private:
  const Shape& shape(ValueId value) const { return graph_.value(value).shape(); }

  /// A node of `like` whose value is new, and has its name.
  ValueId add(const Node& like, const std::string& part, Op op, Attributes attributes, std::vector<ValueId> inputs,
              const Shape& made) {
    Node node = node_like(like, like.name + part, op);
    const DType dtype = graph_.value(like.inputs[0]).dtype();
    node.attributes = std::move(attributes);
    node.inputs = std::move(inputs);
    node.outputs = {graph_.add_value({.name = node.name, .spec = {dtype, made}})};
    graph_.nodes.push_back(std::move(node));
    return graph_.nodes.back().outputs[0];
  }

  void router(Node& node) {
    const ValueId x = node.inputs[0], weight = node.inputs[1];
    const ValueId logits =
        add(node, ".logits", Op::linear, {{"bias", false}}, {x, weight}, shape(x).with_last(shape(weight)[0]));
    const double aux = real_of(Op::route, node.attributes, "aux"), z = real_of(Op::route, node.attributes, "z");
    const ValueId choices = node.outputs[1];
    logits_[choices] = logits;
    const double rate = take_rate(node);
    node.op = Op::route;
    node.inputs.erase(node.inputs.begin() + 1);  // the weight; what is left is the logits and the bias, if any
    node.inputs[0] = logits;
    const Node counting = node_like(node, node.name, Op::router_losses);
    const Node like = node_like(node, node.name + ".losses", Op::router_losses);
    if (!training_) node.attributes.set("aux", 0.0), node.attributes.set("z", 0.0);
    const Attributes attributes{{"score", text(node, "score")}, {"aux", aux}, {"z", z}};
    graph_.nodes.push_back(std::move(node));
    if (training_ && rate > 0) count_choices(counting, rate, logits, choices);
    if (!training_ || (aux == 0 && z == 0)) return;
    state(kRouterSeed, {DType::f32, Shape{1}});
    count(like, attributes, {logits, choices});
  }

  /// By how much each step moves the router's bias; 0: it has none, or one that stays. The router that is left does not
  /// say it.
  static double take_rate(Node& router) {
    if (!router.attributes.has("balance_rate")) return 0;
    const double rate = router.attributes.real("balance_rate");
    Attributes others;
    for (const auto& [key, value] : router.attributes.items())
      if (key != "balance_rate") others.set(key, value);
    router.attributes = others;
    return rate;
  }

  void count_choices(Node node, double rate, ValueId logits, ValueId choices) {
    node.attributes = {{"counts", true}, {"rate", rate}};
    node.inputs = {logits, choices,
                   state(node.name + "." + std::string(kExpertCounts), {DType::f64, Shape{shape(logits)[-1]}})};
    graph_.nodes.push_back(std::move(node));
  }

  /// A node that adds to the sums of routers.
  void count(Node node, const Attributes& attributes, std::vector<ValueId> inputs) {
    node.attributes = attributes;
    node.inputs = std::move(inputs);
    node.inputs.push_back(state(kRouterSums, {DType::f64, Shape{2}}));
    graph_.nodes.push_back(std::move(node));
  }

  ValueId state(std::string_view name, const Spec& spec) {
    for (const GraphState& known : graph_.states)
      if (graph_.value(known.value).name == name) return known.value;
    graph_.states.push_back(
        {graph_.add_value({.name = std::string(name), .spec = spec, .kind = ValueKind::state}), std::nullopt});
    return graph_.states.back().value;
  }

  /// The choices for which experts have room.
  ValueId kept(const Node& node, ValueId choices, std::int64_t capacity) {
    const std::int64_t experts = shape(node.inputs[3])[0];
    Node keep = node_like(node, node.name + ".kept", Op::expert_capacity);
    keep.attributes = {{"experts", experts}, {"capacity", capacity}};
    keep.inputs = {choices};
    keep.outputs = {graph_.add_value({.name = keep.name, .spec = {DType::i32, shape(choices)}})};
    const ValueId result = keep.outputs[0];
    graph_.nodes.push_back(std::move(keep));
    if (training_)
      count(node_like(node, node.name + ".left_out", Op::router_losses), {{"capacity", true}},
            {logits_.at(choices), choices, result});
    return result;
  }

  void experts(Node& node) {
    const ValueId x = node.inputs[0], weights = node.inputs[1];
    const bool bounded = capacities_ && node.attributes.has("capacity");
    const ValueId choices = bounded ? kept(node, node.inputs[2], node.attributes.integer("capacity")) : node.inputs[2];
    const Shape& of = shape(choices);
    const Shape hidden{of[0], of[1], of[2], shape(node.inputs[3])[1]};
    const bool gelu = node.attributes.text("act") == "gelu";
    const ValueId gate = add(node, ".gate_proj", Op::expert_linear, {}, {x, choices, node.inputs[3]}, hidden);
    const ValueId up = add(node, ".up_proj", Op::expert_linear, {}, {x, choices, node.inputs[4]}, hidden);
    const ValueId act = add(node, ".act", gelu ? Op::gelu : Op::silu, {}, {gate}, hidden);
    const ValueId gated = add(node, ".gated", Op::mul, {}, {act, up}, hidden);
    const ValueId weighed = add(node, ".weighed", Op::weigh, {}, {gated, weights}, hidden);
    node.op = Op::expert_linear;
    node.attributes = {};
    node.inputs = {weighed, choices, node.inputs[5]};
    graph_.nodes.push_back(std::move(node));
  }

  Graph& graph_;
  const bool training_, capacities_;
  std::map<ValueId, ValueId> logits_;  ///< of a router, by its choices
};

}  // namespace

void place_experts(Graph& graph, bool training, bool capacities) { Placing(graph, training, capacities).run(); }

bool counts_choices(const Node& node) { return node.op == Op::router_losses && flag(node, "counts"); }

void hold_frozen_routers(Graph& graph) {
  std::set<ValueId> frozen;  // weights, then logits and counts of routers whose weight is frozen
  for (const Parameter& parameter : graph.parameters)
    if (!parameter.trainable) frozen.insert(parameter.value);
  const auto holds = [&](const Node& node) {
    if (node.op == Op::linear && frozen.contains(node.inputs[1])) frozen.insert(node.outputs[0]);
    if (!counts_choices(node) || !frozen.contains(node.inputs[0])) return false;
    frozen.insert(node.inputs[2]);
    return true;
  };
  std::vector<Node> nodes;
  for (Node& node : graph.nodes)
    if (!holds(node)) nodes.push_back(std::move(node));
  graph.nodes = std::move(nodes);
  std::erase_if(graph.states, [&](const GraphState& state) { return frozen.contains(state.value); });
}

bool is_router_bias(std::string_view name) { return name.ends_with("." + std::string(kBalanceBias)); }

bool moves(const Graph& graph, const GraphState& state) {
  const std::string& name = graph.value(state.value).name;
  return std::ranges::any_of(graph.nodes, [&](const Node& node) {
    if (node.op == Op::batch_norm || node.op == Op::batch_norm_update)
      return std::ranges::find(node.inputs, state.value) != node.inputs.end();
    return counts_choices(node) && name == node.name + "." + std::string(kBalanceBias);
  });
}

}  // namespace trainer
