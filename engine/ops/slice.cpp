// slice: a run of places along one dim. expand: a tensor once more for each sample of another, or for each place in
// another dim of it. What a slice leaves out
// gets the gradient 0; the copies' gradients are summed.
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

Inference infer_slice(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_values(inputs[0], compute);
  Shape shape = inputs[0].shape;
  Inference inference{
      .attributes = dim_attribute(given, shape.rank()), .parameters = {}, .outputs = {}, .saved_names = {}};
  const int dim = static_cast<int>(integer_of(Op::slice, inference.attributes, "dim"));
  const std::int64_t whole = shape[dim], size = given.integer("size"), written = given.integer("start"),
                     start = written < 0 ? written + whole : written;
  if (start < 0 || size > whole || start > whole - size)
    mistake("dim " + std::to_string(shape.rank() + dim) + " of the input " + shape.str() + " has no " +
                std::to_string(size) + " places from " + std::to_string(written) + " on",
            given.has("start") && size <= whole ? "start" : "size");
  if (start > 0) inference.attributes.set("start", start);
  shape[dim] = size;
  inference.outputs = {{compute, shape}};
  return inference;
}

std::vector<ValueId> gradient_slice(GradientBuilder& build, const Node& node, OutputGradients dy) {
  if (!build.needed(node.inputs[0])) return {kNone};
  return build.node(node, Op::slice_grad, node.attributes, {dy[0]}, {input_desc(build.graph(), node, 0)});
}

/// Any other dim as it is, and sums.
Placed shard_slice(const Graph& graph, const Node& node, Placing in) {
  const ValueId x = node.inputs[0];
  if (in[0].is_shard(dim_of(graph, node, x)) || parts_rows(graph, node, x, in[0])) return {};
  return all(node, in[0]);
}

OpDef slicing(Op op) {
  OpDef def{.op = op, .shard = shard_slice};
  // The smaller operand is what is read; the gradient writes the larger one.
  def.cost = [](const Signature& s) {
    const bool forward = s.op == Op::slice;
    const double small = static_cast<double>(s.operands[forward ? 1 : 0].bytes());
    return Cost{.bytes_read = small, .bytes_written = forward ? small : static_cast<double>(s.operands[1].bytes())};
  };
  return def;
}

Inference infer_expand(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_values(inputs[0], compute);
  const std::int64_t dim = given.integer("dim");
  need_rank_least(inputs[1], 1, "the second input");
  if (inputs[0].shape.rank() == Shape::kMaxDims) mistake("the input has too many dims: " + inputs[0].shape.str());
  if (dim > inputs[0].shape.rank() || dim >= inputs[1].shape.rank())
    mistake("a new dim of " + inputs[0].shape.str() + ", sized as one of " + inputs[1].shape.str() + ", is 0 to " +
                std::to_string(std::min(inputs[0].shape.rank(), inputs[1].shape.rank() - 1)),
            "dim");
  std::vector<std::int64_t> sizes(inputs[0].shape.sizes().begin(), inputs[0].shape.sizes().end());
  sizes.insert(sizes.begin() + dim, inputs[1].shape[static_cast<int>(dim)]);
  Inference inference;
  if (dim > 0) inference.attributes.set("dim", dim);
  inference.outputs = {{compute, Shape(sizes)}};
  return inference;
}

/// The sum over the copies, which come first for that.
std::vector<ValueId> gradient_expand(GradientBuilder& build, const Node& node, OutputGradients dy) {
  if (!build.needed(node.inputs[0])) return {kNone, kNone};
  const TensorDesc dx = input_desc(build.graph(), node, 0);
  const TensorDesc& copies = build.graph().value(dy[0]).desc();
  const auto dim = static_cast<int>(integer(node, "dim"));
  ValueId first = dy[0];
  if (dim > 0) {
    std::vector<std::int64_t> sizes{copies.shape[dim]};
    sizes.insert(sizes.end(), dx.shape.sizes().begin(), dx.shape.sizes().end());
    std::string order = std::to_string(dim);
    for (int i = 0; i < copies.shape.rank(); ++i)
      if (i != dim) order += "," + std::to_string(i);
    first = build.node(node, Op::transpose, {{"dims", order}}, {first}, {{copies.dtype, Shape(sizes)}})[0];
  }
  return {build.node(node, Op::sum_leading, {}, {first}, {dx})[0], kNone};
}

/// Copies are cut as those of `like`, or the rest as that of x, and then both as samples are.
Placed shard_expand(const Graph&, const Node& node, Placing in) {
  const auto dim = static_cast<int>(integer(node, "dim"));
  if (in[0].is_replicate() && in[1].is_shard(dim)) return all(node, in[1]);
  if (in[1].is_shard(Placement::kRows) || in[1].is_shard(dim) || in[0].is_shard(Placement::kRows)) return {};
  return all(node, in[0].is_shard() && in[0].dim >= dim ? in[0].moved_to(in[0].dim + 1) : in[0]);
}

}  // namespace

OpDef slice() {
  OpDef def = slicing(Op::slice);
  def.infer = infer_slice;
  def.gradient = gradient_slice;
  return def;
}

OpDef slice_grad() { return slicing(Op::slice_grad); }

OpDef expand() {
  OpDef def{.op = Op::expand, .min_inputs = 2, .max_inputs = 2};
  def.infer = infer_expand;
  def.gradient = gradient_expand;
  def.shard = shard_expand;
  def.cost = [](const Signature& s) {
    return Cost{.bytes_read = static_cast<double>(s.operands[0].bytes()),
                .bytes_written = static_cast<double>(s.operands[2].bytes())};
  };
  return def;
}

}  // namespace trainer::define
