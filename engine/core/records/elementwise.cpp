// Element by element, and the sums of their gradients.
#include "engine/core/records/define.h"

namespace trainer::records {
namespace {

Operands grad_of_input() { return {in("dy", "c"), in("x", "c"), out("dx", "c", "dy x")}; }
Operands grad_of_output() { return {in("dy", "c"), in("y", "c"), out("dx", "c", "dy y")}; }
Operands binary() {
  return {in("a", "c [lead..., s...]"), in("b", "c [s...] (shape equal to a's, or to its last dims)"),
          out("y", "c", "a")};
}

AttributeDef approximate(bool in_file) {
  AttributeDef def{
      .name = "approximate", .type = Type::choice, .otherwise = std::string("tanh"), .choices = {"tanh", "none"}};
  return in_file ? both(def, "the approximation by tanh, or the error function itself") : def;
}

AttributeDef cap() {
  AttributeDef def = real("cap");
  def.above = true;
  return def;
}

OpRecord activation(Op op, AttributeDefs attributes = {}, WorkClass work = WorkClass::elements) {
  return {.op = op,
          .traits = {graph_file, elementwise, keeps_columns},
          .operands = {in("x", "c"), out("y", "c", "x")},
          .attributes = std::move(attributes),
          .work = work};
}

OpRecord activation_grad(Op op, Operands operands, AttributeDefs attributes = {},
                         WorkClass work = WorkClass::elements) {
  return {.op = op,
          .traits = {backward},
          .operands = std::move(operands),
          .attributes = std::move(attributes),
          .work = work};
}

AttributeDefs glu_attributes() {
  return {{.name = "activation", .type = Type::choice, .otherwise = std::string("silu"), .choices = {"silu", "gelu"}},
          approximate(false)};
}

}  // namespace

// The gradients of gelu and silu read x, those of the others y.
OpRecord gelu(Op op) { return activation(op, {approximate(true)}, WorkClass::own); }
OpRecord relu(Op op) { return activation(op); }
OpRecord silu(Op op) { return activation(op); }
OpRecord tanh(Op op) { return activation(op); }
OpRecord sigmoid(Op op) { return activation(op); }

// Gemma 2 caps its logits at 30. Source: Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size",
// 2024, section 2.
OpRecord softcap(Op op) { return activation(op, {both(cap(), "what the values approach")}); }
OpRecord gelu_grad(Op op) { return activation_grad(op, grad_of_input(), {approximate(false)}, WorkClass::own); }
OpRecord silu_grad(Op op) { return activation_grad(op, grad_of_input()); }
OpRecord relu_grad(Op op) { return activation_grad(op, grad_of_output()); }
OpRecord tanh_grad(Op op) { return activation_grad(op, grad_of_output()); }
OpRecord sigmoid_grad(Op op) { return activation_grad(op, grad_of_output()); }
OpRecord softcap_grad(Op op) { return activation_grad(op, grad_of_output(), {cap()}); }

// Of gated feed-forward parts: SwiGLU and GEGLU. Source: Shazeer, "GLU Variants Improve Transformer", 2020.
OpRecord glu(Op op) {
  return {.op = op,
          .operands = {in("gate", "c"), in("up", "c"), out("y", "c", "gate up")},
          .attributes = glu_attributes(),
          .note = "activation(gate) · up"};
}

OpRecord glu_grad(Op op) {
  return {.op = op,
          .traits = {backward},
          .operands = {in("dy", "c"), in("gate", "c"), in("up", "c"), out("dgate", "c", "dy gate"),
                       out("dup", "c", "dy up")},
          .attributes = glu_attributes()};
}

OpRecord add(Op op) { return {.op = op, .traits = {graph_file}, .operands = binary(), .work = WorkClass::own}; }
OpRecord mul(Op op) { return {.op = op, .traits = {graph_file, keeps_columns}, .operands = binary()}; }
OpRecord scale(Op op) {
  return activation(op, {both(from(-kInfinity, real("factor")), "what every element is multiplied by"),
                         file(flag("rounded", false), "whether the factor is rounded to the compute dtype first")});
}

OpRecord dropout(Op op) {
  AttributeDef p = both(real("p"), "the share of values that are dropped");
  p.below = 1;
  return {.op = op,
          .traits = {graph_file, elementwise, keeps_columns, random},
          .operands = {in("x", "c [batch, ...]"), in("step", "i32 [1]"), out("y", "c", "x")},
          .attributes = {p, integer("key"), integer("sample", "elements of x after dim 0"),
                         integer("row", "x's last dim"), integer("stride", "as row"), flag("zigzag", false)},
          .note = "key: the 64-bit random key, two's complement"};
}

OpRecord sum_leading(Op op) {
  return {.op = op, .traits = {backward, scratch}, .operands = {in("x", "c [lead..., s...]"), out("y", "c [s...]")}};
}

OpRecord bias_grad(Op op) {
  return {.op = op,
          .traits = {backward, scratch},
          .operands = {in("dy", "c [..., out, ...]"), sum("dbias", "r [out]")},
          .attributes = {integer("dim")},
          .timed_as = "sum_leading",
          .note = "sums over all dims but `dim`, where out stands; negative: from the last"};
}

}  // namespace trainer::records
