// Every node of the model is looked at beside its counterpart in the graph, which an adapter may have changed: either
// both compute the same, or the reference gets a copy.
#include "engine/transform/dpo.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "engine/core/check.h"
#include "engine/core/index.h"
#include "engine/core/op_record.h"

namespace trainer {
namespace {

std::string of_reference(const std::string& name) { return std::string(kReferencePrefix) + name; }

class DpoPass {
 public:
  DpoPass(Graph& graph, const std::vector<Node>& model, const std::vector<bool>& trained, double beta)
      : graph_(graph), model_(model), trained_(trained), beta_(beta) {}

  std::optional<std::string> run() {
    CHECK(graph_.loss.sum != kNone && graph_.seed == kNone, "a forward graph with a loss");
    const auto found = std::ranges::find_if(model_, [&](const Node& node) { return makes_loss(node); });
    CHECK(found != model_.end(), "a node makes the loss");
    if (std::optional<std::string> mistake = mistake_in(*found)) return mistake;
    loss_ = *found;
    std::vector<Node> nodes = std::exchange(graph_.nodes, {});
    std::erase_if(nodes, [&](const Node& node) { return makes_loss(node); });
    for (std::size_t begin = 0; begin < nodes.size();) {
      std::size_t end = begin + 1;
      while (end < nodes.size() && same_run(nodes[begin], nodes[end])) ++end;
      rewrite(std::span(nodes).subspan(begin, end - begin), end == nodes.size() && same_run(nodes[begin], loss_));
      begin = end;
    }
    if (nll_of_reference_ == kNone) add_nll_of_reference();
    add_loss();
    order_parameters();
    return std::nullopt;
  }

 private:
  bool makes_loss(const Node& node) const { return !node.outputs.empty() && node.outputs[0] == graph_.loss.sum; }

  std::optional<std::string> mistake_in(const Node& loss) const {
    if (loss.op != Op::cross_entropy) return "dpo needs a model whose loss is a cross_entropy of its logits";
    if (graph_.loss.auxiliary != kNone) return "dpo has one loss, of pairs: the graph has an auxiliary one as well";
    if (real(loss, "label_smoothing") != 0)
      return "dpo needs the probabilities of the model: its loss has label_smoothing";
    if (graph_.value(loss.inputs[0]).shape().rank() < 3)
      return "dpo needs logits [batch, seq, classes], those of a sequence for each row of the batch";
    for (const Node& node : graph_.nodes)
      if (has(node.op, Trait::composite) || node.op == Op::route)
        return "dpo is not made of models with experts: " + node.name + " routes tokens";
    for (const GraphState& state : graph_.states)
      if (state.initial)
        return "dpo needs a model without running statistics: training changes " + graph_.value(state.value).name;
    for (const Value& value : graph_.values)
      if (value.name.starts_with(kReferencePrefix))
        return "\"" + value.name + "\" of the graph has the name of a part of the reference";
    return std::nullopt;
  }

  bool same_run(const Node& a, const Node& b) const {
    return a.chunk == b.chunk && graph_.outermost(a.block) == graph_.outermost(b.block);
  }

  /// The first node, what both models compute, the reference, and the rest of the policy.
  void rewrite(std::span<Node> run, bool last) {
    std::vector<Node> reference, policy;
    for (std::size_t i = 0; i < run.size(); ++i) {
      const bool shared = mirror(run[i], reference);
      (shared || i == 0 ? graph_.nodes : policy).push_back(std::move(run[i]));
    }
    append(reference);
    if (last) add_nll_of_reference();
    append(policy);
  }

  void append(std::vector<Node>& nodes) {
    for (Node& node : nodes) graph_.nodes.push_back(std::move(node));
  }

  /// Adds what the reference has for a node of the policy. Whether that node is of both.
  bool mirror(const Node& policy, std::vector<Node>& reference) {
    while (next_ < model_.size() && makes_loss(model_[next_])) ++next_;
    if (next_ == model_.size() || model_[next_].name != policy.name || model_[next_].op != policy.op)
      return false;  // of the adapter
    const Node& model = model_[next_++];
    std::vector<ValueId> inputs;
    for (const ValueId input : model.inputs) inputs.push_back(its(input));
    if (has(model.op, Trait::random)) {  // it drops nothing
      instead_[model.outputs[0]] = inputs[0];
      return false;
    }
    if (inputs == policy.inputs && model.attributes == policy.attributes) {
      for (std::size_t i = 0; i < model.outputs.size(); ++i) instead_[model.outputs[i]] = policy.outputs[i];
      return true;
    }
    Node copy = model;
    copy.name = of_reference(model.name);
    copy.inputs = std::move(inputs);
    for (ValueId& output : copy.outputs) {
      Value value = graph_.value(output);
      value.name = of_reference(value.name);
      if (value.alias_of != kNone) value.alias_of = graph_.storage(copy.inputs[0]);
      const ValueId id = graph_.add_value(std::move(value));
      instead_[output] = id;
      output = id;
    }
    reference.push_back(std::move(copy));
    return false;
  }

  /// What the reference reads where the model reads `id`.
  ValueId its(ValueId id) {
    if (const auto known = instead_.find(id); known != instead_.end()) return known->second;
    if (graph_.value(id).kind != ValueKind::parameter || !trained_[at(id)]) return id;
    Value value = graph_.value(id);
    const std::string original = std::exchange(value.name, of_reference(value.name));
    Parameter copy = *std::ranges::find(graph_.parameters, id, &Parameter::value);
    copy.value = graph_.add_value(std::move(value));
    copy.trainable = false;
    copy.init.copy_of = original;
    graph_.parameters.push_back(copy);
    return instead_[id] = copy.value;
  }

  /// How unlikely a model with these logits finds the targets of each sequence.
  ValueId add_nll(ValueId logits, const std::string& name) {
    const Shape& shape = graph_.value(logits).shape();
    const ValueId targets = loss_.inputs[1];
    Node stats = node_like(loss_, name + ".stats", Op::cross_entropy_stats);
    stats.attributes = {{"classes", shape[-1]}, {"ignore_index", integer(loss_, "ignore_index")}};
    stats.inputs = {logits, targets};
    stats.outputs = {graph_.add_value({.name = stats.name, .spec = {DType::f32, {1, shape.rows(), 5}}})};
    Node nll = node_like(loss_, name + ".nll", Op::sequence_nll);
    nll.attributes = stats.attributes;
    nll.inputs = {logits, stats.outputs[0], targets};
    nll.outputs = {graph_.add_value({.name = nll.name, .spec = {DType::f64, {shape[0]}}}),
                   graph_.add_value({.name = name + ".lse", .spec = {DType::f32, {shape.rows()}}})};
    const ValueId result = nll.outputs[0];
    graph_.nodes.push_back(std::move(stats));
    graph_.nodes.push_back(std::move(nll));
    return result;
  }

  void add_nll_of_reference() { nll_of_reference_ = add_nll(its(loss_.inputs[0]), of_reference(loss_.name)); }

  void add_loss() {
    const ValueId policy = add_nll(loss_.inputs[0], loss_.name);
    Node node = node_like(loss_, loss_.name, Op::dpo_loss);
    const Attributes counted{{"ignore_index", integer(loss_, "ignore_index")}};
    node.attributes = counted;
    node.attributes.set("beta", beta_);
    node.inputs = {policy, nll_of_reference_, loss_.inputs[1]};
    Loss& loss = graph_.loss;
    loss.figure_names = {"rewards_chosen", "rewards_rejected", "rewards_accuracy"};
    const auto figures = static_cast<std::int64_t>(loss.figure_names.size()) + 1;
    loss.figures = {graph_.add_value({.name = loss_.name + ".figures", .spec = {DType::f64, {figures}}})};
    node.outputs = {loss.sum, loss.figures[0]};
    loss.count_op = Op::dpo_count;
    loss.count_attributes = counted;
    loss.scores = kNone;
    graph_.nodes.push_back(std::move(node));
  }

  /// By first use, as reading a file leaves them: units of consecutive parameters are those of consecutive nodes.
  void order_parameters() {
    std::map<ValueId, std::pair<std::size_t, std::size_t>> first;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i)
      for (std::size_t k = 0; k < graph_.nodes[i].inputs.size(); ++k)
        first.emplace(graph_.nodes[i].inputs[k], std::pair(i, k));
    std::ranges::stable_sort(graph_.parameters, {}, [&](const Parameter& one) { return first.at(one.value); });
  }

  Graph& graph_;
  const std::vector<Node>& model_;
  const std::vector<bool>& trained_;
  const double beta_;
  Node loss_;  ///< of the model
  ValueId nll_of_reference_ = kNone;
  std::size_t next_ = 0;                ///< in model_
  std::map<ValueId, ValueId> instead_;  ///< of the reference, by what the model has there
};

}  // namespace

std::optional<std::string> add_dpo(Graph& graph, const std::vector<Node>& model, const std::vector<bool>& trained,
                                   double beta) {
  return DpoPass(graph, model, trained, beta).run();
}

}  // namespace trainer
