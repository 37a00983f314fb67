// Three passes: what works across positions is refused; attention and positions are rewritten; the logits are narrowed
// to one token.
#include "engine/transform/cached.h"

#include <algorithm>

#include "engine/core/check.h"
#include "engine/core/index.h"
#include "engine/core/op_record.h"
#include "engine/ops/refuse.h"
#include "engine/ops/unpack_attention.h"
#include "engine/transform/position_wise.h"
#include "engine/transform/prune.h"

namespace trainer {
namespace {

[[noreturn]] void fail(const Node& node, const std::string& why) {
  throw JobError({mistake_at(node, "text cannot be generated token by token: " + why)});
}

bool is_causal(const Node& node) { return node.op == Op::attention && flag(node, "causal"); }

void expect_independent(const Graph& whole) {
  const Node* node = where_positions_meet(whole, is_causal);
  if (node == nullptr) return;
  if (node->op == Op::attention) fail(*node, "this attention is not causal, or not over the text's own positions");
  fail(*node, std::string(name_of(node->op)) + " works across positions");
}

// ---- States and positions ------------------------------------------------------------------------------------------

class Caching {
 public:
  Caching(Graph& graph, const Graph& whole) : graph_(graph), whole_(whole) {}

  void run() {
    std::vector<Node> nodes = std::move(graph_.nodes);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].op == Op::attention) cache(nodes[i], whole_.nodes[i]);
      if (nodes[i].op == Op::positions) {
        nodes[i].inputs.push_back(position());
        nodes[i].attributes.set("at", true);
      }
      graph_.nodes.push_back(std::move(nodes[i]));
    }
  }

 private:
  ValueId position() {
    if (graph_.position == kNone)
      graph_.position = graph_.add_value({.name = "position", .spec = {DType::i32, {1}}, .kind = ValueKind::scalar});
    return graph_.position;
  }

  ValueId state(const std::string& name, ValueId rows, std::int64_t room) {
    const Value& like = graph_.value(rows);
    const Shape& shape = like.shape();
    const Spec spec(like.dtype(), Shape{shape[0], room, shape[2]});
    graph_.states.push_back({graph_.add_value({.name = name, .spec = spec, .kind = ValueKind::state})});
    return graph_.states.back().value;
  }

  void cache(Node& node, const Node& of_whole) {
    const std::int64_t room = whole_.value(of_whole.inputs[0]).shape()[1];
    if (flag(node, "packed")) graph_.nodes.push_back(unpack_attention(graph_, node));
    node.inputs = {node.inputs[0],
                   node.inputs[1],
                   node.inputs[2],
                   position(),
                   state(node.name + ".keys", node.inputs[1], room),
                   state(node.name + ".values", node.inputs[2], room)};
    node.outputs.resize(1);
    node.op = Op::attention_cached;
    node.attributes = {};
    for (const auto& [name, value] : of_whole.attributes.items())
      if (record(Op::attention_cached).attribute(name) != nullptr) node.attributes.set(name, value);
  }

  Graph& graph_;
  const Graph& whole_;
};

// ---- Logits --------------------------------------------------------------------------------------------------------

/// The nodes behind the last one that other nodes read as well, which make logits of rows one by one: the first of
/// them.
std::size_t first_of_head(const Graph& graph) {
  std::vector<int> reads(graph.values.size(), 0);
  for (const Node& node : graph.nodes)
    for (ValueId input : node.inputs) ++reads[at(input)];
  ValueId wanted = graph.logits;
  std::size_t first = graph.nodes.size();
  while (first > 0) {
    const Node& node = graph.nodes[first - 1];
    const bool by_rows = node.op == Op::linear || has(node.op, Trait::elementwise);
    const bool alone =
        node.outputs.size() == 1 && node.outputs[0] == wanted && (wanted == graph.logits) == (reads[at(wanted)] == 0);
    const bool one_input = std::ranges::count_if(node.inputs, [&](ValueId id) {
                             return graph.value(graph.storage(id)).kind == ValueKind::activation;
                           }) == 1;
    if (!by_rows || !alone || !one_input || graph.value(node.inputs[0]).kind != ValueKind::activation) break;
    wanted = node.inputs[0];
    --first;
    if (reads[at(wanted)] != 1) break;
  }
  return first;
}

/// `value` in another shape, of the same memory.
ValueId reshaped(Graph& graph, std::vector<Node>& nodes, const Node& like, ValueId value, const Shape& shape) {
  const Value& from = graph.value(value);
  Node node = node_like(like, from.name + ".rows", Op::reshape);
  node.inputs = {value};
  node.outputs = {
      graph.add_value({.name = node.name, .spec = {from.dtype(), shape}, .alias_of = graph.storage(value)})};
  nodes.push_back(node);
  return nodes.back().outputs[0];
}

void narrow_logits(Graph& graph) {
  const std::size_t first = first_of_head(graph);
  if (first == graph.nodes.size()) fail(graph.nodes.back(), "its logits are not of rows one by one");
  const Node& head = graph.nodes[first];
  const ValueId all = head.inputs[0];
  const Shape shape = graph.value(all).shape();
  const ValueId last = graph.add_value({.name = "last", .spec = {DType::i32, {1}}, .kind = ValueKind::input});
  graph.inputs.push_back(last);
  std::vector<Node> picks;
  const ValueId rows = reshaped(graph, picks, head, all, Shape{shape.rows(), shape[-1]});
  Node pick = node_like(head, head.name + ".last", Op::embedding);
  pick.inputs = {last, rows};
  pick.outputs = {graph.add_value({.name = pick.name, .spec = {graph.value(all).dtype(), Shape{1, shape[-1]}}})};
  picks.push_back(pick);
  const ValueId row = reshaped(graph, picks, head, pick.outputs[0], Shape{1, 1, shape[-1]});
  graph.nodes[first].inputs[0] = row;
  for (std::size_t i = first; i < graph.nodes.size(); ++i) {
    Value& out = graph.value(graph.nodes[i].outputs[0]);
    out.spec.whole = Shape{1, 1, out.shape()[-1]};
  }
  graph.nodes.insert(graph.nodes.begin() + static_cast<std::ptrdiff_t>(first), picks.begin(), picks.end());
}

}  // namespace

Graph cached(Graph newest, const Graph& whole) {
  const auto alike = [](const Node& a, const Node& b) { return a.op == b.op && a.name == b.name; };
  CHECK(std::ranges::equal(newest.nodes, whole.nodes, alike), "one file gives the same nodes at any length");
  expect_independent(whole);
  Caching(newest, whole).run();
  for (const ValueId input : newest.inputs)
    if (newest.value(input).name == "tokens") newest.value(input).name = kNewest;
  if (newest.value(newest.logits).shape().rows() > 1) narrow_logits(newest);
  prune(newest, {newest.logits});
  return newest;
}

}  // namespace trainer
