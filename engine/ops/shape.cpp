// reshape, flatten: the same memory seen in another shape. No kernel runs.
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

Inference alias(const TensorDesc& input, const Shape& shape) {
  Inference inference;
  inference.outputs = {{input.dtype, shape}};
  inference.alias = true;
  return inference;
}

Inference infer_reshape(const Attributes& given, std::span<const TensorDesc> inputs, DType) {
  std::vector<std::int64_t> sizes = sizes_of(given.text("shape"));
  if (sizes.size() > Shape::kMaxDims)
    mistake("a tensor has at most " + std::to_string(Shape::kMaxDims) + " dims", "shape");
  std::int64_t product = 1, *open = nullptr;
  for (std::int64_t& size : sizes) {
    if (size == -1 && open != nullptr) mistake("only one dim may be -1", "shape");
    if (size < 1 && size != -1) mistake("a dim must be at least 1, or -1", "shape");
    if (size == -1) open = &size;
    if (size == -1) continue;
    if (size > inputs[0].elements() / product)
      mistake("shape " + inputs[0].shape.str() + " does not have the elements of a shape with the dim " +
                  std::to_string(size),
              "shape");
    product *= size;
  }
  if (open != nullptr && inputs[0].elements() % product == 0) *open = inputs[0].elements() / product;
  const Shape shape(sizes);
  if (shape.elements() != inputs[0].elements())
    mistake("shape " + inputs[0].shape.str() + " does not have the elements of " + shape.str(), "shape");
  return alias(inputs[0], shape);
}

Inference infer_flatten(const Attributes&, std::span<const TensorDesc> inputs, DType) {
  need_rank_least(inputs[0], 1);
  const std::int64_t first = inputs[0].shape[0];
  return alias(inputs[0], {first, inputs[0].elements() / first});
}

std::vector<ValueId> gradient_reshape(GradientBuilder& build, const Node& node, OutputGradients dy) {
  if (!build.needed(node.inputs[0])) return {kNone};
  return {build.alias(node, dy[0], Shape(input_shape(build.graph(), node, 0)))};
}

/// Dims [first, last) of two shapes with the same number of elements.
struct Group {
  int from_first = 0, from_last = 0, to_first = 0, to_last = 0;
};

/// The smallest group of dims of `from` that `dim` is in and that are dims of `to` as well.
Group group_of(const Shape& from, const Shape& to, int dim) {
  Group group;
  while (true) {
    group = {group.from_last, group.from_last, group.to_last, group.to_last};
    std::int64_t before = from[group.from_last++], after = 1;
    while (before != after || (group.from_last == from.rank() && group.to_last < to.rank())) {
      if (group.to_last < to.rank() && (before >= after || group.from_last == from.rank()))
        after *= to[group.to_last++];
      else
        before *= from[group.from_last++];
    }
    if (dim < group.from_last) return group;
  }
}

/// Whether a rank's run of rows is one of shorter rows, or of longer ones of which each rank has as many. Rows are cut
/// along the tensor axis.
bool runs_stay_rows(const Graph& graph, const Node& node) {
  const Shape &from = input_shape(graph, node, 0), &to = graph.value(node.outputs[0]).shape();
  if (from[-1] % to[-1] == 0) return true;
  std::int64_t ranks = graph.mesh.size(Axis::tensor);
  for (const Cut& cut : graph.value(node.inputs[0]).spec.cuts())
    if (cut.axis != Axis::tensor) ranks *= graph.mesh.size(cut.axis);
  return to[-1] % from[-1] == 0 && to.elements() / to[-1] % ranks == 0;
}

/// A cut of a dim is one of the elements of its group, in so many pieces; and so one of a dim of `to`, where each dim
/// before it has an index for each piece.
Placed shard_reshape(const Graph& graph, const Node& node, Placing in) {
  const Shape &from = input_shape(graph, node, 0), &to = graph.value(node.outputs[0]).shape();
  if (in[0].is_partial()) return all(node, in[0]);
  if (in[0].dim == Placement::kRows) return runs_stay_rows(graph, node) ? all(node, in[0]) : Placed{};
  const Group group = group_of(from, to, in[0].dim);
  if (group.from_last - group.from_first == 1 && group.to_last - group.to_first == 1)
    return all(node, in[0].moved_to(group.to_first));
  if (in[0].lead != 1) return {};
  std::int64_t parts = in[0].parts;
  for (int dim = group.from_first; dim < in[0].dim; ++dim) parts *= from[dim];
  for (int dim = group.to_first; dim < group.to_last; ++dim) {
    if (parts % to[dim] == 0)
      parts /= to[dim];
    else if (to[dim] % parts == 0) {
      Placement placement = in[0].moved_to(dim);
      placement.parts = static_cast<std::int32_t>(parts);
      return all(node, placement);
    } else
      return {};
  }
  return {};
}

OpDef view(Op op) {
  OpDef def{.op = op};
  def.gradient = gradient_reshape;
  def.shard = shard_reshape;
  def.cost = [](const Signature&) { return Cost{}; };
  return def;
}

}  // namespace

OpDef reshape() {
  OpDef def = view(Op::reshape);
  def.infer = infer_reshape;
  return def;
}

OpDef flatten() {
  OpDef def = view(Op::flatten);
  def.infer = infer_flatten;
  return def;
}

}  // namespace trainer::define
