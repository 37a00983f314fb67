// Activation checkpointing as a rewrite of the differentiated graph: forward nodes that may be repeated get copies
// inside the backward pass, made where they are first read, and the backward nodes read those. What is not read
// otherwise is then dead after the forward pass, and its memory free.
#include <unordered_map>

#include "engine/core/check.h"
#include "engine/core/index.h"
#include "engine/ops/op_def.h"
#include "engine/transform/transform.h"

namespace trainer {
namespace {

class Recomputation {
 public:
  Recomputation(Graph& graph, const RecomputePolicy& policy) : graph_(graph), policy_(policy) {}

  void run() {
    find_outermost();
    while (num_forward_ < graph_.nodes.size() && !graph_.nodes[num_forward_].backward) ++num_forward_;
    find_producers();
    repeat_.assign(num_forward_, false);
    if (policy_.mode == RecomputePolicy::Mode::selective)
      choose_cheap();
    else if (policy_.mode != RecomputePolicy::Mode::none)
      choose_blocks();
    if (!policy_.gathers.empty()) choose_gathers();
    rewrite();
  }

 private:
  /// Policies speak of outermost blocks: layers, whatever blocks they have inside. `ordinal_` counts them.
  void find_outermost() {
    std::int32_t count = 0;
    for (std::size_t i = 0; i < graph_.blocks.size(); ++i) {
      const std::int32_t parent = graph_.blocks[i].parent;
      ordinal_.push_back(parent == kNone ? count++ : ordinal_[at(parent)]);
    }
  }

  std::int32_t block_of(const Node& node) const { return node.block == kNone ? kNone : ordinal_[at(node.block)]; }

  void find_producers() {
    producer_.assign(graph_.values.size(), kNone);
    for (std::size_t i = 0; i < num_forward_; ++i)
      for (ValueId output : graph_.nodes[i].outputs) producer_[at(output)] = static_cast<NodeId>(i);
    read_later_.assign(graph_.values.size(), false);
    for (std::size_t i = num_forward_; i < graph_.nodes.size(); ++i)
      for (ValueId input : graph_.nodes[i].inputs) read_later_[at(graph_.storage(input))] = true;
  }

  bool in_recomputed_block(const Node& node) const {
    if (node.block == kNone) return false;
    return policy_.mode != RecomputePolicy::Mode::every_n || block_of(node) % policy_.every == 0;
  }

  /// Whether another block, or the graph around blocks, reads the node's value: it is an input of what follows, and so
  /// is kept.
  std::vector<bool> leaves_block() const {
    std::vector<bool> leaves(graph_.values.size(), false);
    for (std::size_t i = 0; i < num_forward_; ++i)
      for (ValueId input : graph_.nodes[i].inputs) {
        const NodeId from = producer_[at(input)];
        if (from != kNone && block_of(graph_.nodes[at(from)]) != block_of(graph_.nodes[i]))
          leaves[at(graph_.storage(input))] = true;
      }
    return leaves;
  }

  /// What leaves its block; the change of a state, which happens once; and a few sums that ranks have joined.
  bool kept(const Node& node, const std::vector<bool>& leaves) const {
    return node.outputs.empty() || leaves[at(graph_.storage(node.outputs[0]))] || joins_statistics(node);
  }

  bool joins_statistics(const Node& node) const {
    const NodeId from = node.op == Op::all_reduce ? producer_[at(node.inputs[0])] : kNone;
    return node.op == Op::batch_norm_sums || (from != kNone && graph_.nodes[at(from)].op == Op::batch_norm_sums);
  }

  /// full, every_n: everything inside a block but what leaves it.
  void choose_blocks() {
    const std::vector<bool> leaves = leaves_block();
    for (std::size_t i = 0; i < num_forward_; ++i)
      repeat_[i] = in_recomputed_block(graph_.nodes[i]) && !kept(graph_.nodes[i], leaves);
  }

  /// selective: a cheap node is repeated if all it reads is there: kept for another reason, or repeated itself. One
  /// that would need something kept for it alone is kept instead, which costs the same memory and no time.
  void choose_cheap() {
    const std::vector<bool> leaves = leaves_block();
    std::vector<bool> there(graph_.values.size(), false);
    for (std::size_t i = 0; i < graph_.values.size(); ++i) there[i] = graph_.values[i].kind != ValueKind::activation;
    for (std::size_t i = 0; i < num_forward_; ++i) {
      const Node& node = graph_.nodes[i];
      bool ready = in_recomputed_block(node) && !has(node.op, Trait::costly) && !kept(node, leaves);
      for (ValueId input : node.inputs) ready = ready && there[at(graph_.storage(input))];
      repeat_[i] = ready;
      for (ValueId output : node.outputs) {
        const std::size_t storage = at(graph_.storage(output));
        there[storage] = there[storage] || ready || read_later_[storage] || leaves[storage];
      }
    }
  }

  /// Gathers, and views of what they make.
  void choose_gathers() {
    for (std::size_t i = 0; i < num_forward_; ++i) {
      const Node& node = graph_.nodes[i];
      const NodeId from = node.inputs.empty() ? kNone : producer_[at(node.inputs[0])];
      const bool gathers = node.op == Op::all_gather && node.axes.within(policy_.gathers),
                 views = graph_.is_view(node) && from != kNone && repeat_[at(from)];
      repeat_[i] = repeat_[i] || gathers || views;
    }
  }

  void rewrite() {
    std::vector<Node> backward(
        std::make_move_iterator(graph_.nodes.begin() + static_cast<std::ptrdiff_t>(num_forward_)),
        std::make_move_iterator(graph_.nodes.end()));
    graph_.nodes.resize(num_forward_);
    for (Node& node : backward) {
      for (ValueId& input : node.inputs) input = again(input);
      for (ValueId output : node.outputs)
        if (Value& value = graph_.value(output); value.alias_of != kNone)
          value.alias_of = graph_.storage(node.inputs[0]);
      graph_.nodes.push_back(std::move(node));
    }
  }

  /// The value as a backward node reads it: a repeated node's copy, made now if this is its first use.
  ValueId again(ValueId id) {
    if (at(id) >= producer_.size() || producer_[at(id)] == kNone || !repeat_[at(producer_[at(id)])]) return id;
    if (const auto found = copies_.find(id); found != copies_.end()) return found->second;
    Node node = graph_.nodes[at(producer_[at(id)])];
    for (ValueId& input : node.inputs) input = again(input);
    for (ValueId& output : node.outputs) {
      Value value = graph_.value(output);
      value.name += ".again";
      if (value.alias_of != kNone) value.alias_of = graph_.storage(node.inputs[0]);
      const ValueId copy = graph_.add_value(std::move(value));
      copies_.emplace(output, copy);
      output = copy;
    }
    node.backward = node.recomputed = true;
    graph_.nodes.push_back(std::move(node));
    return copies_.at(id);
  }

  Graph& graph_;
  RecomputePolicy policy_;
  std::size_t num_forward_ = 0;
  std::vector<std::int32_t> ordinal_;  ///< by block: the number of the outermost block around it
  std::vector<NodeId> producer_;       ///< by value: the forward node that makes it
  std::vector<bool> read_later_;       ///< by storage: whether a backward node reads it
  std::vector<bool> repeat_;           ///< by forward node
  std::unordered_map<ValueId, ValueId> copies_;
};

}  // namespace

void recompute(Graph& graph, const RecomputePolicy& policy) {
  if (policy.mode == RecomputePolicy::Mode::none && policy.gathers.empty()) return;
  CHECK(graph.seed != kNone, "a graph is differentiated before activations are recomputed");
  CHECK(policy.every >= 1, "every_n counts from 1");
  Recomputation(graph, policy).run();
}

}  // namespace trainer
