// How linears are chosen, and what of their shapes the scales of a device refuse.
#include "engine/transform/fp8.h"

#include <set>

#include "engine/core/check.h"

namespace trainer {
namespace {

bool is_product(Op op) { return op == Op::linear || op == Op::linear_grad_input || op == Op::linear_grad_weight; }

bool is_adapter(const Node& node) { return node.name.ends_with(".lora_A") || node.name.ends_with(".lora_B"); }

std::string sizes_of(const Graph& graph, const Node& linear) {
  const Shape x = graph.local_shape(linear.inputs[0]), weight = graph.local_shape(linear.inputs[1]);
  return std::to_string(x.rows()) + " rows of " + std::to_string(weight[1]) + " inputs and " +
         std::to_string(weight[0]) + " outputs";
}

bool fits(const Graph& graph, const Node& linear, std::int64_t multiple) {
  const Shape x = graph.local_shape(linear.inputs[0]), weight = graph.local_shape(linear.inputs[1]);
  return x.rows() % multiple == 0 && weight[0] % multiple == 0 && weight[1] % multiple == 0;
}

}  // namespace

// A node of the backward pass has the name of its forward node.
std::vector<std::string> use_fp8(Graph& graph, Fp8Scales scales) {
  CHECK(scales != Fp8Scales::none, "a device without products of fp8 is refused before");
  std::set<ValueId> routed;
  for (const Node& node : graph.nodes)
    if (node.op == Op::route) routed.insert(node.inputs[0]);
  std::vector<std::string> mistakes;
  std::set<std::string> marked;
  std::string first;  // of those that do not fit
  int misfits = 0;
  for (const Node& node : graph.nodes) {
    if (node.op != Op::linear || node.backward || node.block == kNone || is_adapter(node) ||
        routed.contains(node.outputs[0]))
      continue;
    marked.insert(node.name);
    if (fits(graph, node, fp8_multiple(scales))) continue;
    if (++misfits == 1) first = node.name + " has " + sizes_of(graph, node);
  }
  if (misfits > 0)
    mistakes.push_back(first + " on a rank, and products of fp8 take multiples of " +
                       std::to_string(fp8_multiple(scales)) + " here" +
                       (misfits > 1 ? "; " + std::to_string(misfits - 1) + " more linears do not fit" : ""));
  if (marked.empty()) mistakes.emplace_back("this graph has no linear in a block");
  for (Node& node : graph.nodes)
    if (is_product(node.op) && marked.contains(node.name)) node.attributes.set("fp8", std::string(name_of(scales)));
  return mistakes;
}

}  // namespace trainer
