// linear: y = x·Wᵀ + b over the last dim, with W [out, in] as PyTorch has it. Fusion (engine/transform/fuse.h) gives it
// and the gradient of its input `gelu` or `residual` (kernels/linear.h), where the device's kernels take them; it comes
// after differentiation. quantized_linear is the same with W in parts (engine/core/quantized.h), which are cut as W
// would be: a cut of W's rows is one of the rows of all parts, one of its columns one of the columns of all parts but
// the scales of rows.
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

Inference infer_linear(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_values(inputs[0], compute);
  need_rank_least(inputs[0], 2);
  const std::int64_t out = given.integer("out"), in = inputs[0].shape[-1];
  Inference inference;
  inference.attributes.set("bias", given.flag("bias"));
  inference.parameters.push_back({"weight", {out, in}, matrix_init()});
  if (given.flag("bias")) inference.parameters.push_back({"bias", {out}, zeros_init()});
  inference.outputs.push_back({compute, inputs[0].shape.with_last(out)});
  return inference;
}

/// The weight's gradient first: it is the last to read the saved input, whose memory is free before dx needs some; and
/// the sooner it is there, the sooner it can be reduced. A frozen weight has none, and the input is not saved for it.
std::vector<ValueId> gradient_linear(GradientBuilder& build, const Node& node, OutputGradients dy) {
  product_gradients(build, node, Op::linear_grad_weight, {}, dy[0], -1);
  std::vector<ValueId> result(node.inputs.size(), kNone);
  if (build.needed(node.inputs[0]))
    result[0] =
        build.node(node, Op::linear_grad_input, {}, {dy[0], node.inputs[1]}, {input_desc(build.graph(), node, 0)})[0];
  return result;
}

/// What a product does after it.
struct Epilogue {
  bool gelu = false, residual = false;
};

Epilogue epilogue_of(const Node& node) { return {flag(node, "gelu"), flag(node, "residual")}; }

/// The result, where what is added to it lies as it does.
Placed with_residual(const Node& node, Placing in, Epilogue epilogue, Placement result) {
  if (epilogue.residual && in.back() != result) return {};
  return all(node, result);
}

/// By samples (or any leading dim); by columns: W's rows; by rows: W's columns, which leaves partial sums and so
/// takes a bias on one rank alone (attribute `partial`), and no activation.
Placed shard_product(const Graph& graph, const Node& node, Placing in, Epilogue epilogue) {
  const int last = input_shape(graph, node, 0).rank() - 1;
  const bool bias = in.size() > (epilogue.residual ? 3 : 2);
  const Placement x = in[0], weight = in[1];
  const auto made = [&](Placement y) { return with_residual(node, in, epilogue, y); };
  if (x.is_shard() && x.dim < last && weight.is_replicate() && (!bias || in[2].is_replicate())) return made(x);
  if (x.is_replicate() && weight.is_shard(0) && (!bias || in[2] == weight)) return made(weight.moved_to(last));
  if (epilogue.gelu) return {};  // of a sum that is not whole
  const bool bias_once = !bias || (adds_once(node) && in[2].is_replicate());
  if (x.is_shard(last) && weight == x.moved_to(1) && bias_once) return made(Placement::partial());
  if (x.is_partial() && weight.is_replicate() && !bias) return made(x);
  return {};
}

Placed shard_linear(const Graph& graph, const Node& node, Placing in) {
  return shard_product(graph, node, in, epilogue_of(node));
}

/// Linear in dy. What the activation read, if there is one, must lie as the result does, or whole where that is a
/// partial sum.
Placed shard_input_gradient(const Graph& graph, const Node& node, Placing in, Epilogue epilogue) {
  const int last = input_shape(graph, node, 0).rank() - 1;
  const Placement dy = in[0], weight = in[1];
  const auto made = [&](Placement dx) -> Placed {
    if (epilogue.gelu && in[2] != (dx.is_partial() ? Placement::replicate() : dx)) return {};
    return with_residual(node, in, epilogue, dx);
  };
  if (weight.is_replicate() && (dy.is_partial() || (dy.is_shard() && dy.dim < last))) return made(dy);
  if (dy.is_shard(last) && weight == dy.moved_to(0)) return made(Placement::partial());
  if (dy.is_replicate() && weight.is_shard(1)) return made(weight.moved_to(last));
  return {};
}

Placed shard_linear_grad_input(const Graph& graph, const Node& node, Placing in) {
  return shard_input_gradient(graph, node, in, epilogue_of(node));
}

/// Outputs are dweight and, with a bias, dbias.
Placed shard_linear_grad_weight(const Graph& graph, const Node& node, Placing in) {
  const int last = input_shape(graph, node, 0).rank() - 1;
  const Placement x = in[0], dy = in[1];
  if (x.is_shard() && x.dim < last && x == dy) return all(node, Placement::partial());
  if (x.is_replicate() && dy.is_partial()) return all(node, dy);
  if (x.is_replicate() && dy.is_shard(last)) return all(node, dy.moved_to(0));
  if ((x.is_shard(last) || x.is_partial()) && dy.is_replicate()) {
    std::vector<Placement> outputs(node.outputs.size());
    outputs[0] = x.is_partial() ? x : x.moved_to(1);
    return outputs;
  }
  return {};
}

std::vector<ValueId> gradient_quantized_linear(GradientBuilder& build, const Node& node, OutputGradients dy) {
  std::vector<ValueId> result(node.inputs.size(), kNone);
  const bool nf4 = flag(node, "nf4");
  const std::size_t parts = nf4 ? 3 : 2;
  if (node.inputs.size() > 1 + parts && build.needed(node.inputs.back()))
    bias_gradient(build, node, dy[0], node.inputs.back(), -1);
  if (!build.needed(node.inputs[0])) return result;
  std::vector<ValueId> inputs{dy[0]};
  for (std::size_t i = 1; i <= parts; ++i) inputs.push_back(node.inputs[i]);
  result[0] = build.node(node, Op::quantized_linear_grad_input, {{"nf4", nf4}}, std::move(inputs),
                         {input_desc(build.graph(), node, 0)})[0];
  return result;
}

/// The placements of a node whose inputs 1, 2 and with `nf4` 3 are the parts of W, with one of W in their place;
/// nothing where they are not cut as W is.
std::optional<std::vector<Placement>> with_weight(const Node& node, Placing in) {
  const bool nf4 = flag(node, "nf4");
  const Placement codes = in[1];
  if (codes.is_shard(1) && codes.parts != 1) return {};  // blocks of columns would be parted
  const Placement scales = codes.is_shard(1) && !nf4 ? Placement::replicate() : codes;
  if (in[2] != scales || (nf4 && in[3] != codes)) return {};
  std::vector<Placement> placements{in[0], codes};
  placements.insert(placements.end(), in.begin() + (nf4 ? 4 : 3), in.end());
  return placements;
}

Placed shard_quantized_linear(const Graph& graph, const Node& node, Placing in) {
  const auto placements = with_weight(node, in);
  return placements ? shard_product(graph, node, *placements, {}) : Placed();
}

Placed shard_quantized_grad_input(const Graph& graph, const Node& node, Placing in) {
  const auto placements = with_weight(node, in);
  return placements ? shard_input_gradient(graph, node, *placements, {}) : Placed();
}

double quantized_flops(const Signature& s) {
  const Shape &x = s.operands.front().shape, &y = s.operands.back().shape;
  return 2.0 * static_cast<double>(x.elements()) * static_cast<double>(y[-1]);
}

double product_flops(const TensorDesc& rows, const TensorDesc& weight) {
  return 2.0 * static_cast<double>(rows.shape.rows()) * static_cast<double>(weight.elements());
}

}  // namespace

OpDef linear() {
  OpDef def{.op = Op::linear};
  def.infer = infer_linear;
  def.gradient = gradient_linear;
  def.shard = shard_linear;
  def.shard_by_origin = shard_once;
  def.origin = origin_once;
  def.localize = localize_once;
  def.flops = [](const Signature& s) { return product_flops(s.operands[0], s.operands[1]); };
  return def;
}

OpDef linear_grad_input() {
  OpDef def{.op = Op::linear_grad_input};
  def.shard = shard_linear_grad_input;
  def.flops = [](const Signature& s) { return product_flops(s.operands[0], s.operands[1]); };
  return def;
}

OpDef quantized_linear() {
  OpDef def{.op = Op::quantized_linear};
  def.gradient = gradient_quantized_linear;
  def.shard = shard_quantized_linear;
  def.shard_by_origin = shard_once;
  def.origin = origin_once;
  def.localize = localize_once;
  def.flops = quantized_flops;
  return def;
}

OpDef quantized_linear_grad_input() {
  OpDef def{.op = Op::quantized_linear_grad_input};
  def.shard = shard_quantized_grad_input;
  def.flops = quantized_flops;
  return def;
}

OpDef linear_grad_weight() {
  OpDef def{.op = Op::linear_grad_weight};
  def.shard = shard_linear_grad_weight;
  def.flops = [](const Signature& s) { return product_flops(s.operands[0], s.operands[2]); };
  return def;
}

}  // namespace trainer::define
