// One walk over the nodes. Parameters keep their names, which are those of the node of the file and a part of it.
#include "engine/transform/experts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "engine/core/op_record.h"

namespace trainer {
namespace {

class Placing {
 public:
  Placing(Graph& graph, const BuildOptions& options)
      : graph_(graph),
        training_(options.mode == BuildOptions::Mode::train),
        capacities_(training_ || options.mode == BuildOptions::Mode::evaluate),
        parts_(options.mesh.size(Axis::expert)),
        batch_ranks_(options.mesh.group_size(kBatchAxes)),
        sequence_ranks_(
            options.mesh.group_size(options.sequence_parallel ? kSequenceAxes | Axis::tensor : kSequenceAxes)) {}

  void run() {
    for (Node& node : std::exchange(graph_.nodes, {})) {
      if (needs_waiting(node)) stop_waiting();
      if (node.op == Op::router)
        router(node);
      else if (node.op == Op::experts)
        experts(node);
      else
        graph_.nodes.push_back(std::move(node));
    }
    stop_waiting();
  }

 private:
  /// What works with tokens that travel stands behind all of its block that does not need it, such as an expert for all
  /// tokens: that runs beside the journey.
  bool needs_waiting(const Node& node) const {
    if (waiting_.empty()) return false;
    const ValueId result = waiting_.back().outputs[0];
    return node.op == Op::experts || node.block != waiting_.back().block ||
           std::ranges::find(node.inputs, result) != node.inputs.end();
  }
  void stop_waiting() {
    for (Node& node : std::exchange(waiting_, {})) graph_.nodes.push_back(std::move(node));
  }

  const Shape& shape(ValueId value) const { return graph_.value(value).shape(); }

  /// A node of `like` whose value is new, and has its name. Of the first input's dtype.
  ValueId add(const Node& like, const std::string& part, Op op, Attributes attributes, std::vector<ValueId> inputs,
              const Shape& made) {
    Node node = node_like(like, like.name + part, op);
    node.attributes = std::move(attributes);
    node.inputs = std::move(inputs);
    node.outputs = {graph_.add_value({.name = node.name, .spec = {graph_.value(node.inputs[0]).dtype(), made}})};
    if (op == Op::all_to_all) node.axes = Axes::of(Axis::expert);
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
    if (training_ && rate > 0)
      count(counting, {{"counts", true}, {"rate", rate}}, {logits, choices}, counts_of_router(counting.name),
            shape(logits)[-1]);
    if (!training_ || (aux == 0 && z == 0)) return;
    state(kRouterSeed, {DType::f32, Shape{1}});
    count(like, attributes, {logits, choices}, kRouterSums, 2);
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

  /// A node that adds to so many sums, which are a state.
  void count(Node node, const Attributes& attributes, std::vector<ValueId> inputs, std::string_view sums,
             std::int64_t size) {
    node.attributes = attributes;
    node.inputs = std::move(inputs);
    node.inputs.push_back(state(sums, {DType::f64, Shape{size}}));
    graph_.nodes.push_back(std::move(node));
  }

  /// In training, the choices that are none in `kept`.
  void count_left_out(const Node& node, ValueId choices, ValueId kept) {
    if (training_)
      count(node_like(node, node.name + ".left_out", Op::router_losses), {{"capacity", true}},
            {logits_.at(choices), choices, kept}, kRouterSums, 2);
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
    count_left_out(node, choices, result);
    return result;
  }

  /// What the experts of a rank are given: tokens, what chooses among the experts for each, and by what weights.
  struct Given {
    ValueId x, choices, weights;
    Attributes attributes{};  ///< of the products
  };

  /// What takes a rank's tokens to other ranks' experts.
  struct Travel {
    ValueId slots, sources, numbers;
    Shape rows;  ///< [blocks, parts, rows]
    double filled = 1;
  };

  /// Rows that a rank sends to another: what it may need at most, or in training without capacities `bound` times the
  /// mean. Outside of training nothing is left out. Two at least, by which the proof tells rows from columns.
  std::int64_t rows_of(const Node& node, const Shape& choices) const {
    const std::int64_t of_part = (shape(node.inputs[3])[0] + parts_ - 1) / parts_;
    const std::int64_t samples = choices[0] / batch_ranks_, tokens = samples * choices[1] / sequence_ranks_;
    const std::int64_t most = std::max<std::int64_t>(2, tokens * std::min(choices[2], of_part));
    if (capacities_ && node.attributes.has("capacity"))
      return std::clamp<std::int64_t>(samples * of_part * node.attributes.integer("capacity"), 2, most);
    if (!training_) return most;
    const double mean = static_cast<double>(tokens * choices[2]) / static_cast<double>(parts_);
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(node.attributes.real("bound") * mean)), 2,
                                    most);
  }

  Travel slots(const Node& node, ValueId choices) {
    const Shape of = shape(choices);
    const std::int64_t rows = rows_of(node, of);
    const Shape buffers{batch_ranks_ * sequence_ranks_, parts_, rows};
    Node made = node_like(node, node.name + ".slots", Op::expert_slots);
    made.attributes = {{"experts", shape(node.inputs[3])[0]}};
    made.inputs = {choices};
    const auto value = [&](const char* part, const Shape& is) {
      made.outputs.push_back(graph_.add_value({.name = node.name + part, .spec = {DType::i32, is}}));
      return made.outputs.back();
    };
    Travel travel{value(".slots", of), value(".sources", buffers), value(".numbers", buffers), buffers};
    graph_.nodes.push_back(std::move(made));
    const double mean = static_cast<double>(of[0] / batch_ranks_ * of[1] * of[2]);
    travel.filled = std::min(1.0, mean / static_cast<double>(sequence_ranks_ * parts_ * rows));
    return travel;
  }

  /// To the ranks that have the experts.
  Given dispatched(const Node& node, const Given& own, const Travel& travel) {
    const auto rows_of_width = [&](std::int64_t n) { return Shape{travel.rows[0], travel.rows[1], travel.rows[2], n}; };
    const auto send = [&](const std::string& what, ValueId rows) {
      return add(node, ".sent" + what, Op::all_to_all, {{"dim", std::int64_t{1}}}, {rows}, shape(rows));
    };
    const Shape weights = shape(own.weights);
    const ValueId column =
        add(node, ".weights", Op::reshape, {}, {own.weights}, {weights[0], weights[1], weights[2], 1});
    graph_.value(column).alias_of = graph_.storage(own.weights);
    const auto dispatch = [&](const std::string& what, ValueId x) {
      return send(what, add(node, ".dispatched" + what, Op::dispatch, {}, {x, travel.slots, travel.sources},
                            rows_of_width(shape(x)[-1])));
    };
    Given theirs{dispatch("", own.x), send(".numbers", travel.numbers), dispatch(".weights", column)};
    theirs.attributes = {{"parts", parts_}, {"filled", travel.filled}};
    return theirs;
  }

  /// Products of the given, which the node becomes the last of.
  void products(Node& node, const Given& given) {
    const bool gelu = node.attributes.text("act") == "gelu";
    const Shape& of = shape(given.choices);
    std::vector<std::int64_t> sizes;
    for (int dim = 0; dim < of.rank(); ++dim) sizes.push_back(of[dim]);
    sizes.push_back(shape(node.inputs[3])[1]);
    const Shape hidden(sizes);
    const auto product = [&](const char* part, ValueId weight) {
      const ValueId made =
          add(node, part, Op::expert_linear, given.attributes, {given.x, given.choices, weight}, hidden);
      graph_.nodes.back().parallel = Parallel::column;
      return made;
    };
    const ValueId gate = product(".gate_proj", node.inputs[3]), up = product(".up_proj", node.inputs[4]);
    const ValueId act = add(node, ".act", gelu ? Op::gelu : Op::silu, {}, {gate}, hidden);
    const ValueId gated = add(node, ".gated", Op::mul, {}, {act, up}, hidden);
    const ValueId weighed = add(node, ".weighed", Op::weigh, {}, {gated, given.weights}, hidden);
    node.op = Op::expert_linear;
    node.parallel = Parallel::row;
    node.attributes = given.attributes;
    node.inputs = {weighed, given.choices, node.inputs[5]};
  }

  void experts(Node& node) {
    Given own{node.inputs[0], node.inputs[2], node.inputs[1]};
    const ValueId chosen = own.choices;
    if (capacities_ && node.attributes.has("capacity"))
      own.choices = kept(node, chosen, node.attributes.integer("capacity"));
    if (parts_ == 1) {
      products(node, own);
      graph_.nodes.push_back(std::move(node));
      return;
    }
    const Travel travel = slots(node, own.choices);
    if (own.choices == chosen) count_left_out(node, chosen, travel.slots);
    const Given theirs = dispatched(node, own, travel);
    const auto sent = static_cast<std::ptrdiff_t>(graph_.nodes.size());
    Node combine = node_like(node, node.name + ".combined", Op::combine);
    combine.outputs = node.outputs;
    products(node, theirs);
    Value rows = graph_.value(theirs.x);
    rows.name = node.name + ".rows";
    node.outputs = {graph_.add_value(std::move(rows))};
    graph_.nodes.push_back(node);
    const ValueId back =
        add(node, ".back", Op::all_to_all, {{"dim", std::int64_t{0}}}, node.outputs, shape(node.outputs[0]));
    combine.inputs = {back, travel.slots, travel.sources};
    graph_.nodes.push_back(std::move(combine));
    waiting_.assign(std::make_move_iterator(graph_.nodes.begin() + sent), std::make_move_iterator(graph_.nodes.end()));
    graph_.nodes.erase(graph_.nodes.begin() + sent, graph_.nodes.end());
  }

  Graph& graph_;
  const bool training_, capacities_;
  const std::int64_t parts_, batch_ranks_, sequence_ranks_;  ///< of the experts; ranks with samples of their own, and
                                                             ///< with parts of these, or rows
  std::vector<Node> waiting_;
  std::map<ValueId, ValueId> logits_;  ///< of a router, by its choices
};

}  // namespace

void place_experts(Graph& graph, const BuildOptions& options) { Placing(graph, options).run(); }

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

bool moves(const Graph& graph, const GraphState& state) {
  const std::string& name = graph.value(state.value).name;
  return std::ranges::any_of(graph.nodes, [&](const Node& node) {
    if (node.op == Op::batch_norm || node.op == Op::batch_norm_update)
      return std::ranges::find(node.inputs, state.value) != node.inputs.end();
    return counts_choices(node) && name == bias_of_router(node.name);
  });
}

}  // namespace trainer
