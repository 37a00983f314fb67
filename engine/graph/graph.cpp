// Graphs as data: adding values, signatures of nodes, text.
#include "engine/graph/graph.h"

#include <fmt/format.h>

#include "engine/core/check.h"

namespace trainer {
namespace {

std::string text_of(const Attribute& attribute) {
  if (const bool* flag = std::get_if<bool>(&attribute)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<std::int64_t>(&attribute)) return std::to_string(*integer);
  if (const double* real = std::get_if<double>(&attribute)) return fmt::format("{}", *real);
  return std::get<std::string>(attribute);
}

std::string text_of(const Attributes& attributes) {
  std::string text;
  for (const auto& [name, value] : attributes.items())
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", name, text_of(value));
  return text.empty() ? "" : " {" + text + "}";
}

/// As "x f32 [4, 64] @ tensor Shard(1)": placements are told only where they are not Replicate.
std::string text_of(const Graph& graph, const Value& value) {
  std::string text = fmt::format("{} {} {}", value.name, name_of(value.dtype()), value.shape().str());
  if (value.alias_of != kNone) text += " = " + graph.value(value.alias_of).name;
  for (Axis axis : kAxes) {
    const Placement placement = value.spec.on(axis);
    if (!placement.is_replicate()) text += fmt::format(" @ {} {}", name_of(axis), placement.str());
  }
  return text;
}

std::string text_of(const Init& init) {
  if (init.sinusoids) return "sinusoids";
  if (init.quantized)
    return fmt::format("{} of {} as {}", name_of(init.quantized.kind), init.quantized.matrix,
                       name_of(init.quantized.as));
  if (init.uniform > 0) return fmt::format("uniform {}", init.uniform);
  return init.stddev > 0 ? fmt::format("normal {}", init.stddev) : fmt::format("constant {}", init.constant);
}

std::string text_of(const Graph& graph, const Node& node) {
  std::string inputs, outputs;
  for (ValueId id : node.inputs) inputs += (inputs.empty() ? "" : ", ") + graph.value(id).name;
  for (ValueId id : node.outputs) outputs += (outputs.empty() ? "" : ", ") + text_of(graph, graph.value(id));
  const std::string_view pass = node.recomputed ? "again" : node.backward ? "back" : "node";
  return fmt::format("{} {}({}){} -> {}\n", pass, name_of(node.op), inputs, text_of(node.attributes), outputs);
}

}  // namespace

Node node_like(const Node& like, std::string name, Op op) {
  Node node{.name = std::move(name), .op = op, .block = like.block};
  node.chunk = like.chunk;
  node.origin = like.origin;
  return node;
}

ValueId Graph::add_value(Value value) {
  CHECK(value.alias_of == kNone || this->value(value.alias_of).alias_of == kNone,
        "an alias of an alias: " + value.name);
  values.push_back(std::move(value));
  return static_cast<ValueId>(values.size()) - 1;
}

std::int32_t Graph::outermost(std::int32_t block) const {
  while (block != kNone && blocks[static_cast<std::size_t>(block)].parent != kNone)
    block = blocks[static_cast<std::size_t>(block)].parent;
  return block;
}

std::vector<ValueId> Graph::outputs() const {
  std::vector<ValueId> all = loss.figures;
  for (const ValueId id : {loss.sum, loss.scores, logits})
    if (id != kNone) all.push_back(id);
  return all;
}

std::int64_t Graph::num_parameters() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters) {
    const QuantizedPart& part = parameter.init.quantized;
    if (!part)
      count += value(parameter.value).shape().elements();
    else if (part.kind == QuantizedPart::Kind::codes)
      count += part.shape.elements();
  }
  return count;
}

std::string print(const Graph& graph) {
  std::string text = "graph " + graph.name + "\n";
  for (ValueId id : graph.inputs) text += "input " + text_of(graph, graph.value(id)) + "\n";
  for (ValueId id : {graph.step, graph.seed, graph.position})
    if (id != kNone) text += "scalar " + text_of(graph, graph.value(id)) + "\n";
  for (const Parameter& parameter : graph.parameters)
    text += fmt::format("{} {}, {}\n", parameter.trainable ? "parameter" : "frozen",
                        text_of(graph, graph.value(parameter.value)), text_of(parameter.init));
  for (const GraphState& state : graph.states)
    text += fmt::format("state {}{}\n", text_of(graph, graph.value(state.value)),
                        state.initial ? fmt::format(", {}", *state.initial) : "");
  std::int32_t block = kNone;
  for (const Node& node : graph.nodes) {
    if (node.block != block && node.block != kNone) {
      const Block& entered = graph.blocks[static_cast<std::size_t>(node.block)];
      text += fmt::format("block {}{}{}\n", entered.name, entered.kind.empty() ? "" : " ", entered.kind);
    } else if (node.block != block) {
      text += "no block\n";
    }
    block = node.block;
    text += text_of(graph, node);
  }
  if (graph.loss.sum != kNone)
    text += fmt::format("loss {} by {}\n", graph.value(graph.loss.sum).name, name_of(graph.loss.count_op));
  if (graph.logits != kNone) text += fmt::format("logits {}\n", graph.value(graph.logits).name);
  return text;
}

}  // namespace trainer
