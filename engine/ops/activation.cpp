// gelu, relu, silu, tanh, sigmoid, softcap: elementwise functions of one input. The gradients of gelu and silu read x,
// those of the others y, so that only one of x and y is saved. glu: an activation times a second input, of which
// neither the activation nor the product is saved.
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

Placed shard_unary(const Graph&, const Node& node, Placing in) {
  if (in[0].is_shard()) return all(node, in[0]);
  return {};
}

/// Linear in dy.
Placed shard_unary_grad(const Graph&, const Node& node, Placing in) {
  if (in[0].is_shard() && in[0] == in[1]) return all(node, in[0]);
  if (in[0].is_partial() && in[1].is_replicate()) return all(node, in[0]);
  return {};
}

OpDef unary(Op op, Op grad, bool grad_reads_output) {
  OpDef def{.op = op};
  def.infer = infer_elementwise;
  def.gradient = [grad, grad_reads_output](GradientBuilder& build, const Node& node, OutputGradients dy) {
    const ValueId read = grad_reads_output ? node.outputs[0] : node.inputs[0];
    return build.node(node, grad, node.attributes, {dy[0], read}, {input_desc(build.graph(), node, 0)});
  };
  def.shard = shard_unary;
  return def;
}

/// Linear in up.
Placed shard_glu(const Graph&, const Node& node, Placing in) {
  if (in[0].is_shard() && in[0] == in[1]) return all(node, in[0]);
  if (in[0].is_replicate() && in[1].is_partial()) return all(node, in[1]);
  return {};
}

/// Linear in dy.
Placed shard_glu_grad(const Graph&, const Node& node, Placing in) {
  if (in[0].is_shard() && in[0] == in[1] && in[0] == in[2]) return all(node, in[0]);
  if (in[0].is_partial() && in[1].is_replicate() && in[2].is_replicate()) return all(node, in[0]);
  return {};
}

std::vector<ValueId> gradient_glu(GradientBuilder& build, const Node& node, OutputGradients dy) {
  return build.node(node, Op::glu_grad, node.attributes, {dy[0], node.inputs[0], node.inputs[1]},
                    {input_desc(build.graph(), node, 0), input_desc(build.graph(), node, 1)});
}

OpDef unary_grad(Op op) { return {.op = op, .shard = shard_unary_grad}; }

}  // namespace

OpDef gelu() {
  OpDef def = unary(Op::gelu, Op::gelu_grad, false);
  return def;
}

OpDef relu() { return unary(Op::relu, Op::relu_grad, true); }
OpDef silu() { return unary(Op::silu, Op::silu_grad, false); }
OpDef tanh() { return unary(Op::tanh, Op::tanh_grad, true); }
OpDef sigmoid() { return unary(Op::sigmoid, Op::sigmoid_grad, true); }
OpDef softcap() { return unary(Op::softcap, Op::softcap_grad, true); }

OpDef glu() { return {.op = Op::glu, .gradient = gradient_glu, .shard = shard_glu}; }
OpDef glu_grad() { return {.op = Op::glu_grad, .shard = shard_glu_grad}; }

OpDef gelu_grad() { return unary_grad(Op::gelu_grad); }
OpDef relu_grad() { return unary_grad(Op::relu_grad); }
OpDef silu_grad() { return unary_grad(Op::silu_grad); }
OpDef tanh_grad() { return unary_grad(Op::tanh_grad); }
OpDef sigmoid_grad() { return unary_grad(Op::sigmoid_grad); }
OpDef softcap_grad() { return unary_grad(Op::softcap_grad); }

}  // namespace trainer::define
