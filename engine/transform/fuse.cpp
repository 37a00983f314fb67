// Pattern by pattern, each one pass over the nodes. A node that another has taken up is marked, is part of no other
// pattern, and is dropped at the end.
#include "engine/transform/fuse.h"

#include <algorithm>
#include <unordered_map>

#include "engine/core/index.h"
#include "engine/core/op_record.h"
#include "engine/transform/prune.h"

namespace trainer {
namespace {

bool is_norm(Op op) { return has(op, Trait::norm) && !has(op, Trait::backward); }
bool is_batch_norm(Op op) { return op == Op::batch_norm || op == Op::batch_norm_apply; }
bool is_norm_grad(Op op) { return has(op, Trait::norm) && has(op, Trait::backward); }

class Fusion {
 public:
  Fusion(Graph& graph, const Target& target)
      : graph_(graph),
        target_(target),
        taken_(graph.nodes.size(), false),
        producer_(graph.values.size(), kNone),
        reads_(graph.values.size(), 0),
        crosses_(graph.values.size(), false) {
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      for (ValueId output : graph.nodes[i].outputs) producer_[at(output)] = static_cast<NodeId>(i);
      for (ValueId input : graph.nodes[i].inputs) {
        ++reads_[at(input)];
        const NodeId from = producer_[at(input)];
        if (from != kNone && graph.nodes[at(from)].chunk != graph.nodes[i].chunk) crosses_[at(input)] = true;
      }
    }
    for (const Value& value : graph.values)
      if (value.alias_of != kNone) ++reads_[at(value.alias_of)];
    for (ValueId output : graph.outputs()) ++reads_[at(output)];
  }

  void run() {
    find_products();
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) loss_with_gradient(i);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) add_after_batch_norm(i);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) relu_after_batch_norm(i);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) relu_grad_before_batch_norm(i);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) gradients_of_gate(i);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) activation_before_product(i);
    for (std::size_t i = 0; i + 1 < graph_.nodes.size(); ++i) add_before_norm(i, i + 1);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) add_after_norm_grad(i);
    for (std::size_t i = 0; target_.fuses_residual() && i < graph_.nodes.size(); ++i) add_after_product(i);
    for (std::size_t i = 0; i + 1 < graph_.nodes.size(); ++i) gelu_after_linear(i, i + 1);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) gelu_grad_after_product(i);
    drop_taken();
  }

 private:
  /// Both terms of one shape, as a gradient's sum and a residual connection have them.
  bool is_plain(const Node& node, Op op) const {
    return node.op == op && graph_.value(node.inputs[0]).shape() == graph_.value(node.inputs[1]).shape();
  }
  bool is_plain_add(const Node& node) const { return is_plain(node, Op::add); }

  /// Only of direct neighbours: an addition that moves would hold its terms longer.
  void add_before_norm(std::size_t first, std::size_t second) {
    const Node& add = graph_.nodes[first];
    Node& norm = graph_.nodes[second];
    const bool fits = !taken_[first] && add.chunk == norm.chunk && is_plain_add(add) && is_norm(norm.op) &&
                      norm.inputs[0] == add.outputs[0] && norm.backward == add.backward;
    if (!fits || graph_.value(add.outputs[0]).shape().rank() < 2) return;
    norm.inputs[0] = add.inputs[0];
    norm.inputs.insert(norm.inputs.begin() + 1, add.inputs[1]);
    norm.outputs.push_back(add.outputs[0]);
    norm.attributes.set("residual", true);
    taken_[first] = true;
  }

  void add_after_norm_grad(std::size_t i) {
    if (graph_.nodes[i].backward) add_after(i, [](const Node& node) { return is_norm_grad(node.op); });
  }

  /// A sum that another chunk reads stays: uncut, a norm would take it, and rounds otherwise.
  void add_after_product(std::size_t i) {
    const Node& add = graph_.nodes[i];
    if (!is_plain_add(add) || crosses_[at(add.outputs[0])]) return;
    add_after(i, [&](const Node& node) {
      return (node.op == Op::linear || node.op == Op::linear_grad_input) && node.backward == add.backward;
    });
  }

  /// Makes the sum a part of the node that gave one of its terms, if that is `wanted`. The other term must be there
  /// before that node, and nothing else may read what the node gave. So no value lives longer than before.
  template <typename Wanted>
  void add_after(std::size_t i, const Wanted& wanted) {
    const Node& add = graph_.nodes[i];
    if (taken_[i] || !is_plain_add(add)) return;
    for (const std::size_t term : {0, 1}) {
      const ValueId result = add.inputs[term], other = add.inputs[1 - term];
      const NodeId id = producer_[at(result)];
      if (id == kNone || producer_[at(other)] >= id || reads_[at(result)] != 1) continue;
      Node& node = graph_.nodes[at(id)];
      if (!wanted(node) || node.chunk != add.chunk || node.outputs[0] != result || flag(node, "residual")) continue;
      node.inputs.push_back(other);
      node.outputs[0] = add.outputs[0];
      node.attributes.set("residual", true);
      producer_[at(add.outputs[0])] = id;
      taken_[i] = true;
      return;
    }
  }

  void add_after_batch_norm(std::size_t i) {
    const Node& add = graph_.nodes[i];
    add_after(i, [&](const Node& node) {
      return is_batch_norm(node.op) && node.backward == add.backward && node.recomputed == add.recomputed;
    });
  }

  /// Where nothing else reads what the norm gave. The activation is computed where the norm is.
  void relu_after_batch_norm(std::size_t i) {
    const Node& relu = graph_.nodes[i];
    if (relu.op != Op::relu) return;
    const ValueId z = relu.inputs[0], y = relu.outputs[0];
    const NodeId id = producer_[at(z)];
    if (id == kNone || reads_[at(z)] != 1) return;
    Node& norm = graph_.nodes[at(id)];
    if (!is_batch_norm(norm.op) || norm.outputs[0] != z || norm.chunk != relu.chunk || norm.backward != relu.backward ||
        norm.recomputed != relu.recomputed)
      return;
    norm.outputs[0] = y;
    norm.attributes.set("relu", true);
    producer_[at(y)] = id;
    taken_[i] = true;
  }

  /// Where the norm's gradients alone read that of the activation. What the activation gave they find again from x, if
  /// it was of the norm alone.
  void relu_grad_before_batch_norm(std::size_t i) {
    const Node& slope = graph_.nodes[i];
    if (slope.op != Op::relu_grad) return;
    const ValueId dy = slope.inputs[0], y = slope.inputs[1], dz = slope.outputs[0];
    const NodeId id = producer_[at(y)];
    if (id == kNone) return;
    const Node& norm = graph_.nodes[at(id)];
    if (norm.op != Op::batch_norm_apply || !flag(norm, "relu") || flag(norm, "residual")) return;
    const ValueId x = norm.inputs[0], sums = norm.inputs[1], weight = norm.inputs[2], bias = norm.inputs[3];
    std::vector<Node*> gradients;
    for (std::size_t k = i + 1; k < graph_.nodes.size(); ++k) {
      Node& node = graph_.nodes[k];
      const bool of_sums = node.op == Op::batch_norm_grad_sums;
      if ((!of_sums && node.op != Op::batch_norm_grad) || node.inputs[0] != dz) continue;
      if (node.inputs[1] == x && node.inputs[of_sums ? 2 : 3] == sums && node.chunk == slope.chunk)
        gradients.push_back(&node);
    }
    if (gradients.empty() || std::ssize(gradients) != reads_[at(dz)]) return;
    for (Node* node : gradients) {
      node->inputs[0] = dy;
      if (node->op == Op::batch_norm_grad_sums) node->inputs.push_back(weight);
      node->inputs.push_back(bias);
      node->attributes.set("relu", true);
      ++reads_[at(dy)];
    }
    --reads_[at(dy)], --reads_[at(y)];
    taken_[i] = true;
  }

  /// The node stands where the gradient stood: the seed of an auxiliary loss exists only there, and nothing reads the
  /// sum earlier.
  void loss_with_gradient(std::size_t i) {
    Node& gradient = graph_.nodes[i];
    if (gradient.op != Op::cross_entropy_grad) return;
    const ValueId logits = gradient.inputs[0], targets = gradient.inputs[1], lse = gradient.inputs[2],
                  seed = gradient.inputs[3];
    const NodeId id = producer_[at(lse)];
    if (id == kNone || reads_[at(lse)] != 1 || graph_.value(seed).shape().elements() != 1) return;
    const Node& loss = graph_.nodes[at(id)];
    if (loss.op != Op::cross_entropy || loss.chunk != gradient.chunk || loss.inputs[0] != logits) return;
    const ValueId sum = loss.outputs[0], dlogits = gradient.outputs[0];
    const auto reads_sum = [&](const Node& node) { return std::ranges::find(node.inputs, sum) != node.inputs.end(); };
    if (loss.inputs[1] != targets || std::ranges::any_of(graph_.nodes, reads_sum)) return;
    gradient.op = Op::cross_entropy_and_grad;
    gradient.attributes = loss.attributes;
    gradient.inputs = {logits, targets, seed};
    gradient.outputs = {sum, dlogits};
    producer_[at(sum)] = producer_[at(dlogits)] = static_cast<NodeId>(i);
    taken_[at(id)] = true;
  }

  static bool gates(Op op) { return op == Op::silu || op == Op::gelu; }

  /// Products of two values of one shape, by the value that is their first input.
  void find_products() {
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i)
      if (is_plain(graph_.nodes[i], Op::mul)) products_[graph_.nodes[i].inputs[0]].push_back(i);
  }

  static Attributes of_gate(const Node& activation) {
    const bool gelu = activation.op == Op::gelu || activation.op == Op::gelu_grad;
    Attributes attributes = activation.attributes;
    attributes.set("activation", std::string(gelu ? "gelu" : "silu"));
    return attributes;
  }

  /// The node that made `value`, if it is the activation of `gate`.
  bool is_activation_of(ValueId value, ValueId gate) const {
    const NodeId id = producer_[at(value)];
    return id != kNone && gates(graph_.nodes[at(id)].op) && graph_.nodes[at(id)].inputs[0] == gate;
  }

  /// y = f(gate) · up has the gradients d = dy · up, of which f' makes gate's, and dy · f(gate): three nodes that
  /// become one, where the first of the two products is. Nothing reads f(gate) for them any more.
  void gradients_of_gate(std::size_t i) {
    const Node& slope = graph_.nodes[i];
    if (slope.op != Op::silu_grad && slope.op != Op::gelu_grad) return;
    const ValueId d = slope.inputs[0], gate = slope.inputs[1];
    const NodeId first = producer_[at(d)];
    if (first == kNone || reads_[at(d)] != 1 || !is_plain(graph_.nodes[at(first)], Op::mul)) return;
    const ValueId dy = graph_.nodes[at(first)].inputs[0], up = graph_.nodes[at(first)].inputs[1];
    for (const std::size_t second : products_[dy]) {
      const Node& other = graph_.nodes[second];
      if (second == at(first) || taken_[second] || other.op != Op::mul || !is_activation_of(other.inputs[1], gate))
        continue;
      const std::size_t place = std::min(second, at(first));
      const bool there =
          producer_[at(gate)] < static_cast<NodeId>(place) && producer_[at(up)] < static_cast<NodeId>(place);
      if (!there || other.chunk != slope.chunk || graph_.nodes[at(first)].chunk != slope.chunk) continue;
      const ValueId dgate = slope.outputs[0], dup = other.outputs[0];
      --reads_[at(other.inputs[1])];
      Node& node = graph_.nodes[place];
      taken_[std::max(second, at(first))] = taken_[i] = true;
      node.attributes = of_gate(slope);
      node.op = Op::glu_grad;
      node.inputs = {dy, gate, up};
      node.outputs = {dgate, dup};
      producer_[at(dgate)] = producer_[at(dup)] = static_cast<NodeId>(place);
      return;
    }
  }

  /// Where nothing else reads the activation. It is computed where the product is.
  void activation_before_product(std::size_t i) {
    Node& product = graph_.nodes[i];
    if (taken_[i] || !is_plain(product, Op::mul)) return;
    for (const std::size_t term : {0, 1}) {
      const ValueId value = product.inputs[term];
      const NodeId id = producer_[at(value)];
      if (id == kNone || reads_[at(value)] != 1) continue;
      const Node& activation = graph_.nodes[at(id)];
      if (!gates(activation.op) || activation.chunk != product.chunk || activation.backward != product.backward ||
          activation.recomputed != product.recomputed)
        continue;
      product.op = Op::glu;
      product.inputs = {activation.inputs[0], product.inputs[1 - term]};
      product.attributes = of_gate(activation);
      taken_[at(id)] = true;
      return;
    }
  }

  bool is_epilogue(const Node& node, Op op) const {
    return node.op == op && text(node, "approximate") == "tanh" &&
           target_.fuses_gelu(graph_.value(node.outputs[0]).dtype());
  }

  /// Only of direct neighbours, so that no value lives longer. What the activation read stays, as a second output, for
  /// those who read it too: its gradient, or the activation once more under recomputation.
  void gelu_after_linear(std::size_t first, std::size_t second) {
    Node& linear = graph_.nodes[first];
    const Node& gelu = graph_.nodes[second];
    const bool together = linear.chunk == gelu.chunk && linear.backward == gelu.backward;
    const bool neighbours =
        together && linear.op == Op::linear && gelu.inputs[0] == linear.outputs[0] && !flag(linear, "residual");
    if (taken_[second] || !neighbours || !is_epilogue(gelu, Op::gelu) || !linear.once.empty()) return;
    linear.attributes.set("gelu", true);
    const ValueId pre = linear.outputs[0];
    linear.outputs[0] = gelu.outputs[0];
    if (reads_[at(pre)] > 1) {
      linear.attributes.set("pre", true);
      linear.outputs.push_back(pre);
    }
    producer_[at(gelu.outputs[0])] = static_cast<NodeId>(first);
    taken_[second] = true;
  }

  /// What the activation read must be there before the product, and nothing else may read what the product was.
  void gelu_grad_after_product(std::size_t i) {
    const Node& gelu = graph_.nodes[i];
    if (taken_[i] || gelu.op != Op::gelu_grad || !is_epilogue(gelu, Op::gelu_grad)) return;
    const ValueId dy = gelu.inputs[0], pre = gelu.inputs[1];
    const NodeId product_id = producer_[at(dy)];
    if (product_id == kNone || producer_[at(pre)] >= product_id || reads_[at(dy)] != 1) return;
    Node& product = graph_.nodes[at(product_id)];
    if (product.op != Op::linear_grad_input || product.chunk != gelu.chunk || flag(product, "gelu") ||
        flag(product, "residual"))
      return;
    product.inputs.push_back(pre);
    product.outputs[0] = gelu.outputs[0];
    product.attributes.set("gelu", true);
    producer_[at(gelu.outputs[0])] = product_id;
    taken_[i] = true;
  }

  void drop_taken() {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (taken_[i]) continue;
      if (kept != i) graph_.nodes[kept] = std::move(graph_.nodes[i]);
      ++kept;
    }
    if (kept == graph_.nodes.size()) return;
    graph_.nodes.resize(kept);
    std::vector<ValueId> roots = graph_.outputs();
    for (std::size_t id = 0; id < graph_.values.size(); ++id)
      if (graph_.values[id].kind == ValueKind::gradient) roots.push_back(static_cast<ValueId>(id));
    prune(graph_, roots);
  }

  Graph& graph_;
  const Target& target_;
  std::unordered_map<ValueId, std::vector<std::size_t>> products_;
  std::vector<bool> taken_;       ///< by node: part of another now
  std::vector<NodeId> producer_;  ///< by value
  std::vector<int> reads_;        ///< by value: how many operands and aliases it is
  std::vector<bool> crosses_;     ///< by value: whether a node of another chunk reads it
};

}  // namespace

void fuse(Graph& graph, const Target& target) { Fusion(graph, target).run(); }

}  // namespace trainer
