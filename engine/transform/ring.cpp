// One pass over the nodes. What is new is placed by the rules of its op, as everything else in the graph.
#include "engine/transform/ring.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/core/check.h"
#include "engine/ops/op_def.h"

namespace trainer {
namespace {

class Rings {
 public:
  explicit Rings(Graph& graph) : graph_(graph), ranks_(graph.mesh.size(Axis::context)) {}

  void run() {
    for (Node& node : std::exchange(graph_.nodes, {})) {
      if (node.op == Op::attention && in_ring(node.inputs[0]))
        forward(node);
      else if (node.op == Op::attention_grad && in_ring(node.inputs[1]))
        backward(node);
      else
        graph_.nodes.push_back(std::move(node));
    }
  }

 private:
  bool in_ring(ValueId q) const { return graph_.value(q).spec.on(Axis::context).is_zigzag(); }

  // A value that is like another one of the model.
  ValueId value_like(ValueId like, DType dtype, std::string name) {
    const Value& of = graph_.value(like);
    return graph_.add_value({.name = std::move(name), .spec = {dtype, of.shape()}});
  }

  Node node_of(const Node& attention, std::string name, Op op) const {
    Node node = node_like(attention, std::move(name), op);
    node.backward = attention.backward;
    node.recomputed = attention.recomputed;
    return node;
  }

  void add(Node node) {
    for (Axis axis : graph_.mesh.active(kTokenAxes | Axis::tensor)) {
      const auto placed = propagate(graph_, node, axis);
      CHECK(placed.has_value(), "a ring's nodes lie as its attention does: " + node.name);
      for (std::size_t i = 0; i < node.outputs.size(); ++i)
        graph_.value(node.outputs[i]).spec.place(axis, (*placed)[i]);
    }
    graph_.nodes.push_back(std::move(node));
  }

  ValueId shifted(const Node& attention, ValueId value, const std::string& name, ValueId into = kNone) {
    Node node = node_of(attention, name, Op::shift);
    node.axes = Axes::of(Axis::context);
    node.inputs = {value};
    node.outputs = {into == kNone ? value_like(value, graph_.value(value).dtype(), name) : into};
    add(node);
    return node.outputs[0];
  }

  Attributes attributes_of(const Node& attention, int step) const {
    Attributes attributes;
    for (const auto& [name, value] : attention.attributes.items())
      if (name != "packed") attributes.set(name, value);
    attributes.set("ranks", static_cast<std::int64_t>(ranks_));
    attributes.set("step", static_cast<std::int64_t>(step));
    if (step > 0) attributes.set("continues", true);
    return attributes;
  }

  static std::optional<ValueId> mask_of(const Node& attention, std::size_t behind_v) {
    if (!flag(attention, "padded") && !flag(attention, "by_document")) return std::nullopt;
    return attention.inputs[behind_v];
  }

  void forward(const Node& attention) {
    const std::string& name = attention.name;
    const ValueId q = attention.inputs[0], o = attention.outputs[0], lse = attention.outputs[1];
    ValueId k = attention.inputs[1], v = attention.inputs[2];
    const std::optional<ValueId> mask = mask_of(attention, 3);
    ValueId o_before = kNone, lse_before = kNone;
    for (int step = 0; step < ranks_; ++step) {
      const bool last = step + 1 == ranks_;
      const ValueId next_k = last ? kNone : shifted(attention, k, fmt::format("{}.k.{}", name, step + 1));
      const ValueId next_v = last ? kNone : shifted(attention, v, fmt::format("{}.v.{}", name, step + 1));
      Node block = node_of(attention, fmt::format("{}.block.{}", name, step), Op::attention_block);
      block.attributes = attributes_of(attention, step);
      block.inputs = {q, k, v};
      if (mask) block.inputs.push_back(*mask);
      if (step > 0) block.inputs.insert(block.inputs.end(), {o_before, lse_before});
      o_before = last ? o : value_like(o, DType::f32, fmt::format("{}.o.{}", name, step));
      lse_before = last ? lse : value_like(lse, DType::f32, fmt::format("{}.lse.{}", name, step));
      block.outputs = {o_before, lse_before};
      add(std::move(block));
      k = next_k, v = next_v;
    }
  }

  // What travels of dk, or of dv.
  struct Sum {
    ValueId gradient;  // of the attention node
    ValueId arriving = kNone;
    const char* name = "";
  };

  void backward(const Node& attention) {
    const std::string& name = attention.name;
    const ValueId d_o = attention.inputs[0], q = attention.inputs[1];
    ValueId k = attention.inputs[2], v = attention.inputs[3], dq_before = kNone;
    const std::optional<ValueId> mask = mask_of(attention, 4);
    const ValueId o = attention.inputs[mask ? 5 : 4], lse = attention.inputs[mask ? 6 : 5];
    const ValueId dq = attention.outputs[0];
    Sum dk{attention.outputs[1], kNone, "dk"}, dv{attention.outputs[2], kNone, "dv"};
    for (int step = 0; step < ranks_; ++step) {
      const bool last = step + 1 == ranks_;
      const ValueId next_k = last ? kNone : shifted(attention, k, fmt::format("{}.k.{}.again", name, step + 1));
      const ValueId next_v = last ? kNone : shifted(attention, v, fmt::format("{}.v.{}.again", name, step + 1));
      Node block = node_of(attention, fmt::format("{}.block.{}", name, step), Op::attention_block_grad);
      block.attributes = attributes_of(attention, step);
      block.inputs = {d_o, q, k, v};
      if (mask) block.inputs.push_back(*mask);
      block.inputs.insert(block.inputs.end(), {o, lse});
      if (step > 0) block.inputs.push_back(dq_before);
      dq_before = last ? dq : value_like(dq, DType::f32, fmt::format("{}.dq.{}", name, step));
      block.outputs = {dq_before};
      for (const Sum* sum : {&dk, &dv})
        block.outputs.push_back(
            value_like(sum->gradient, DType::f32, fmt::format("{}.{}.own.{}", name, sum->name, step)));
      const std::vector<ValueId> made = block.outputs;
      add(std::move(block));
      pass_on(attention, dk, made[1], step);
      pass_on(attention, dv, made[2], step);
      k = next_k, v = next_v;
    }
  }

  // Adds a block's own share to what arrived, and sends it on.
  void pass_on(const Node& attention, Sum& sum, ValueId own, int step) {
    const std::string name = attention.name + "." + sum.name;
    ValueId so_far = own;
    if (step > 0) {
      Node both = node_of(attention, fmt::format("{}.sum.{}", name, step), Op::add);
      both.inputs = {sum.arriving, own};
      both.outputs = {so_far = value_like(own, DType::f32, both.name)};
      add(std::move(both));
    }
    const bool home = step + 1 == ranks_, rounds = graph_.value(sum.gradient).dtype() != DType::f32;
    sum.arriving =
        shifted(attention, so_far, fmt::format("{}.{}", name, step + 1), home && !rounds ? sum.gradient : kNone);
    if (!home || !rounds) return;
    Node round = node_of(attention, name, Op::cast);
    round.inputs = {sum.arriving};
    round.outputs = {sum.gradient};
    add(std::move(round));
  }

  Graph& graph_;
  const int ranks_;
};

}  // namespace

void expand_rings(Graph& graph) {
  if (graph.mesh.size(Axis::context) > 1) Rings(graph).run();
}

}  // namespace trainer
