// One walk over the nodes, axis by axis: the op's rule, then what can be done so that it holds.
#include "engine/transform/distribute.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "engine/core/check.h"
#include "engine/core/op_record.h"
#include "engine/ops/op_def.h"
#include "engine/ops/refuse.h"
#include "engine/ops/router_states.h"

namespace trainer {
namespace {

std::string describe(const Placement& placement, int rank) {
  if (placement.is_replicate()) return "is whole";
  if (placement.is_partial()) return "is a partial sum";
  if (placement.dim == Placement::kRows) return "is cut by rows";
  return placement.dim == rank - 1 ? "is cut by columns" : "is cut in dim " + std::to_string(placement.dim);
}

[[noreturn]] void refuse_operands(const Graph& graph, const Node& node, Axis axis) {
  if (node.op == Op::router_losses || node.op == Op::expert_capacity)
    refuse(graph, node, axis,
           "the losses of a router (aux, z) and the capacity of experts are of whole samples, of which each rank would "
           "have a part");
  std::string how;
  for (ValueId input : node.inputs) {
    const Value& value = graph.value(input);
    const Placement placement = value.spec.on(axis);
    const int rank = value.shape().rank();
    if (axis == Axis::tensor && rank >= 4 && placement.is_shard(rank - 1))
      if (const std::int64_t heads = value.shape()[rank - 2]; heads % graph.mesh.size(axis) != 0)
        refuse_uneven(graph, node, axis, "the heads of " + value.name, heads, heads);
    if (value.kind != ValueKind::scalar)
      how += (how.empty() ? "" : ", ") + value.name + " " + describe(placement, rank);
  }
  refuse(graph, node, axis, fmt::format("{} cannot work on operands that lie so: {}", name_of(node.op), how));
}

void set_outputs(Graph& graph, const Node& node, Axis axis, const std::vector<Placement>& outputs) {
  CHECK(outputs.size() == node.outputs.size(), "a placement for each output of " + node.name);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Spec& spec = graph.value(node.outputs[i]).spec;
    spec.place(axis, outputs[i]);
    // The blocks of tokens that travel to experts: the expert axis is the innermost.
    if (!(axis == Axis::context || axis == Axis::tensor) || !outputs[i].is_shard(0) || !spec.is_cut(Axis::expert))
      continue;
    const Placement travels = spec.on(Axis::expert);
    spec.place(Axis::expert, {});
    spec.place(Axis::expert, travels);
  }
}

Axes axes_of_values(const Mesh& mesh) { return mesh.active(kTokenAxes | Axis::tensor); }

class Distribution {
 public:
  Distribution(Graph& graph, Axes to_rows) : graph_(graph), to_rows_(to_rows) {}

  void run() {
    for (const GraphState& state : graph_.states)  // each rank sums its own tokens
      if (Value& value = graph_.value(state.value); value.name == kRouterSums)
        for (Axis axis : graph_.mesh.active(kTokenAxes | to_rows_)) value.spec.place(axis, Placement::partial());
    std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (Node& node : nodes) {
      for (ValueId& input : node.inputs) input = summed(input);
      join_statistics(node);
      if (node.op == Op::router_losses && flag(node, "counts")) part_counts(node);
      if (node.op == Op::cross_entropy) split_loss(node);
      if (node.op == Op::cross_entropy_stats && gather_stats(node)) continue;
      add(std::move(node));
    }
    settle_outputs();
  }

 private:
  using Result = std::optional<std::vector<Placement>>;

  Placement on(ValueId value, Axis axis) const { return graph_.value(value).spec.on(axis); }
  std::vector<Placement> inputs_on(const Node& node, Axis axis) const {
    std::vector<Placement> inputs;
    for (ValueId input : node.inputs) inputs.push_back(on(input, axis));
    return inputs;
  }
  bool is_activation(ValueId value) const { return graph_.value(value).kind == ValueKind::activation; }
  /// What later readers of a value take.
  ValueId summed(ValueId value) const {
    const auto at = summed_.find(value);
    return at == summed_.end() ? value : summed(at->second);
  }

  void add(Node node) {
    for (Axis axis : axes_of_values(graph_.mesh)) {
      const Result result = settle(node, axis);
      if (!result) refuse_operands(graph_, node, axis);
      set_outputs(graph_, node, axis, *result);
      enter(node, axis, *result);
      check_even(node, axis);
    }
    for (ValueId output : node.outputs) writers_[output] = graph_.nodes.size();
    graph_.nodes.push_back(std::move(node));
  }

  // The rule's answer, once operands were redistributed so that it has one.
  Result settle(Node& node, Axis axis) {
    // Rows of experts that the hidden layer is cut of travel back when they are summed, each on one of the ranks.
    if (to_rows_.has(axis) && node.op == Op::all_to_all && on(node.inputs[0], axis).is_partial())
      node.inputs[0] = sum(node.inputs[0], axis);
    if (Result result = propagate(graph_, node, axis)) return result;
    if (kBatchAxes.has(axis)) return std::nullopt;
    for (ValueId& input : node.inputs)  // a state has no writer: what ranks count is summed behind the step
      if (on(input, axis).is_partial() && writers_.contains(input)) input = sum(input, axis);
    if (Result result = propagate(graph_, node, axis)) return result;
    if (Result result = with_gathered(node, axis, 1, false)) return result;
    if (Result result = with_gathered(node, axis, 0, false)) return result;
    return with_gathered(node, axis, 0, true);
  }

  // Gathers the cut activations from operand `first` on, or those cut by rows, if the reader then still computes a part
  // of its own: else the gradient of the gather would sum what is the same on all ranks.
  Result with_gathered(Node& node, Axis axis, std::size_t first, bool rows) {
    std::vector<std::size_t> gathered;
    for (std::size_t i = first; i < node.inputs.size(); ++i) {
      const Placement placement = on(node.inputs[i], axis);
      if (rows && placement.dim != Placement::kRows) continue;
      if (is_activation(node.inputs[i]) && placement.is_shard() && placement.parts == 1) gathered.push_back(i);
    }
    if (gathered.empty()) return std::nullopt;
    std::vector<Placement> inputs = inputs_on(node, axis);
    for (std::size_t i : gathered) inputs[i] = {};
    const Result result = propagate(graph_, node, inputs, origin_of(graph_, node).along(axis));
    if (!result || std::all_of(result->begin(), result->end(),
                               [](const Placement& placement) { return placement.is_replicate(); }))
      return std::nullopt;
    for (std::size_t i : gathered)
      node.inputs[i] = redistributed(node, node.inputs[i], Op::all_gather, axis, {}, on(node.inputs[i], axis).dim);
    return result;
  }

  // Whole operands of a node that computes a part: their gradients are partial.
  void enter(Node& node, Axis axis, const std::vector<Placement>& outputs) {
    if (kTokenAxes.has(axis) || is_collective(node.op)) return;
    if (std::all_of(outputs.begin(), outputs.end(),
                    [](const Placement& placement) { return placement.is_replicate(); }))
      return;
    for (ValueId& input : node.inputs)
      if (is_activation(input) && on(input, axis).is_replicate() && !summing_.contains({input, axis}))
        input = redistributed(node, input, Op::replicate, axis, {}, 0);
  }

  ValueId sum(ValueId value, Axis axis) {
    const Node writer = graph_.nodes[writers_.at(value)];
    if (to_rows_.has(axis) && writer.op == Op::expert_linear && integer(writer, "parts") > 1)
      return summed_[value] = redistributed(writer, value, Op::reduce_scatter, axis, Placement::shard(0), 0);
    const bool rows = to_rows_.has(axis) && graph_.value(value).shape().rank() > 1;  // a vector has none
    if (rows) {
      const Shape local = graph_.local_shape(value);
      const std::int64_t count = local.elements() / local[-1];
      if (count % graph_.mesh.size(axis) != 0)
        refuse(graph_, writer, axis,
               fmt::format("sequence parallelism cuts its {} rows (samples of a micro-batch times positions) into {}, "
                           "which does not divide",
                           count, graph_.mesh.size(axis)));
    }
    const ValueId result = rows ? redistributed(writer, value, Op::reduce_scatter, axis,
                                                Placement::shard(Placement::kRows), Placement::kRows)
                                : redistributed(writer, value, Op::all_reduce, axis, {}, 0);
    summed_[value] = result;
    return result;
  }

  /// The value in another placement, by a collective that belongs to `owner`; made once however many read it.
  ValueId redistributed(const Node& owner, ValueId value, Op op, Axis axis, const Placement& to, int dim) {
    const auto [at, fresh] = redistributed_.try_emplace({value, op, axis}, kNone);
    if (!fresh) return at->second;
    Value result = graph_.value(value);
    result.name += op == Op::replicate ? ".replicated" : op == Op::all_gather ? ".gathered" : ".reduced";
    result.alias_of = op == Op::replicate ? graph_.storage(value) : kNone;
    result.spec.place(axis, to);
    const ValueId id = graph_.add_value(std::move(result));
    Node node = node_like(owner, graph_.value(value).name, op);
    if (op == Op::all_gather || op == Op::reduce_scatter) node.attributes.set("dim", static_cast<std::int64_t>(dim));
    node.inputs = {value};
    node.outputs = {id};
    node.axes = Axes::of(axis);
    writers_[id] = graph_.nodes.size();
    graph_.nodes.push_back(std::move(node));
    if (op == Op::all_gather || op == Op::replicate) summing_.insert({id, axis});
    return at->second = id;
  }

  /// Ranks that have other choices have other counts, which the step sums before it moves the router's bias.
  void part_counts(const Node& node) {
    for (Axis axis : axes_of_values(graph_.mesh))
      if (on(node.inputs[1], axis).is_shard()) graph_.value(node.inputs[2]).spec.place(axis, Placement::partial());
  }

  /// The statistics of a batch norm are of the samples of all ranks, except where each normalises by its own. The
  /// running ones always are.
  void join_statistics(Node& node) {
    const bool update = node.op == Op::batch_norm_update;
    if (!update && (node.op != Op::batch_norm_apply || flag(node, "own"))) return;
    ValueId& sums = node.inputs[update ? 0 : 1];
    Axes axes;
    for (Axis axis : graph_.mesh.active(kBatchAxes))
      if (on(sums, axis).is_partial()) axes = axes | axis;
    if (axes.empty()) return;
    const auto [at, fresh] = joined_.try_emplace(sums, kNone);
    if (fresh) {
      Value joined = graph_.value(sums);
      joined.name += ".joined";
      for (Axis axis : axes) joined.spec.place(axis, {});
      Node join = node_like(node, node.name, Op::all_reduce);
      join.inputs = {sums};
      join.outputs = {at->second = graph_.add_value(std::move(joined))};
      join.axes = axes;
      writers_[at->second] = graph_.nodes.size();
      graph_.nodes.push_back(std::move(join));
    }
    sums = at->second;
  }

  /// Of its own logits a rank makes the statistics, and of all ranks' statistics the loss.
  void split_loss(Node& node) {
    const ValueId logits = node.inputs[0], targets = node.inputs[1];
    const Shape& whole = graph_.value(logits).shape();
    for (Axis axis : kAxes) {
      if (graph_.mesh.size(axis) == 1 || !on(logits, axis).is_shard(whole.rank() - 1)) continue;
      const std::int64_t classes = whole[-1];
      Node stats = node_like(node, node.name + ".stats", Op::cross_entropy_stats);
      stats.attributes = {{"classes", classes}, {"ignore_index", integer(node, "ignore_index")}};
      stats.inputs = {logits, targets};
      stats.outputs = {graph_.add_value(
          {.name = stats.name, .spec = {DType::f32, {graph_.mesh.size(axis), whole.elements() / classes, 5}}})};
      const ValueId own = stats.outputs[0];
      add(stats);
      const ValueId all = redistributed(node, own, Op::all_gather, axis, {}, 0);
      node.op = Op::cross_entropy_gathered;
      node.attributes.set("classes", classes);
      node.inputs = {logits, all, targets};
      if (graph_.loss.scores != logits) return;
      graph_.loss.scores = all;
      graph_.loss.correct_op = Op::correct_count_gathered;
      graph_.loss.correct_attributes.set("classes", classes);
      return;
    }
  }

  /// Of classes that are cut: all ranks' statistics, which are the output of a graph for scoring.
  bool gather_stats(Node& node) {
    const Shape& logits = graph_.value(node.inputs[0]).shape();
    for (Axis axis : kAxes) {
      if (graph_.mesh.size(axis) == 1 || !on(node.inputs[0], axis).is_shard(logits.rank() - 1)) continue;
      const ValueId own = node.outputs[0];
      graph_.value(own).spec = {DType::f32, {graph_.mesh.size(axis), logits.rows(), 5}};
      const Node stats = node;
      add(std::move(node));
      const ValueId all = redistributed(stats, own, Op::all_gather, axis, {}, 0);
      if (graph_.logits == own) graph_.logits = all;
      summed_[own] = all;
      return true;
    }
    return false;
  }

  // What an op counts in pieces divides by the ranks over which they are cut.
  void check_even(const Node& node, Axis axis) const {
    const auto& indivisible = definition(node.op).indivisible;
    if (!indivisible) return;
    const int n = graph_.mesh.size(axis);
    for (const auto& [what, pieces] : indivisible(node, inputs_on(node, axis)))
      if (pieces % n != 0) refuse_uneven(graph_, node, axis, what, pieces, pieces);
  }

  // Readers of the graph's outputs find the values where they are now, and whole except for the batch.
  void settle_outputs() {
    for (ValueId* output : {&graph_.logits, &graph_.loss.scores}) {
      if (*output == kNone) continue;
      *output = summed(*output);
      for (Axis axis : kAxes)
        if (on(*output, axis).is_partial()) *output = sum(*output, axis);
    }
    if (graph_.loss.sum == kNone) return;
    std::vector<ValueId> told = graph_.loss.figures;
    told.push_back(graph_.loss.sum);
    for (const ValueId sum : told)
      for (Axis axis : kAxes)
        if (!kTokenAxes.has(axis) && !on(sum, axis).is_replicate())
          refuse(graph_, graph_.nodes[writers_.at(sum)], axis, "each rank would have a part of the loss");
  }

  Graph& graph_;
  const Axes to_rows_;
  std::map<ValueId, ValueId> summed_;  ///< partial sums to what they are summed to
  std::map<ValueId, ValueId> joined_;  ///< the same of statistics, over the batch
  std::map<std::tuple<ValueId, Op, Axis>, ValueId> redistributed_;
  std::map<ValueId, std::size_t> writers_;      ///< index in graph_.nodes of the node that makes a value
  std::set<std::pair<ValueId, Axis>> summing_;  ///< whose gradients may be partial: they are summed
};

}  // namespace

void distribute(Graph& graph, Axes to_rows) {
  if (!axes_of_values(graph.mesh).empty()) Distribution(graph, to_rows).run();
}

void propagate_placements(Graph& graph) {
  for (Axis axis : axes_of_values(graph.mesh))
    for (const Node& node : graph.nodes) {
      const auto outputs = propagate(graph, node, axis);
      if (!outputs) refuse_operands(graph, node, axis);
      set_outputs(graph, node, axis, *outputs);
    }
}

}  // namespace trainer
