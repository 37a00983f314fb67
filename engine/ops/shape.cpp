// reshape, flatten: the same memory seen in another shape. No kernel runs.
#include <charconv>

#include "engine/core/check.h"
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

/// "4,16,-1" as numbers.
std::vector<std::int64_t> sizes_of(const std::string& text) {
  std::vector<std::int64_t> sizes;
  const char *at = text.data(), *end = at + text.size();
  while (at < end) {
    std::int64_t size = 0;
    const auto [next, error] = std::from_chars(at, end, size);
    CHECK(error == std::errc(), "dims are a list of numbers: " + text);
    sizes.push_back(size);
    at = next + 1;
  }
  return sizes;
}

Inference alias(const TensorDesc& input, const Shape& shape) {
  Inference inference;
  inference.outputs = {{input.dtype, shape}};
  inference.alias = true;
  return inference;
}

Inference infer_reshape(const Attributes& given, std::span<const TensorDesc> inputs, DType) {
  std::vector<std::int64_t> sizes = sizes_of(given.text("shape"));
  if (sizes.size() > Shape::kMaxDims) mistake("a tensor has at most " + std::to_string(Shape::kMaxDims) + " dims", "shape");
  std::int64_t product = 1, *open = nullptr;
  for (std::int64_t& size : sizes) {
    if (size == -1 && open != nullptr) mistake("only one dim may be -1", "shape");
    if (size < 1 && size != -1) mistake("a dim must be at least 1, or -1", "shape");
    if (size == -1) open = &size;
    if (size == -1) continue;
    if (size > inputs[0].elements() / product)
      mistake("shape " + inputs[0].shape.str() + " does not have the elements of a shape with the dim " + std::to_string(size), "shape");
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

std::vector<ValueId> gradient_reshape(GradientBuilder& build, const Node& node, ValueId dy) {
  if (!build.needed(node.inputs[0])) return {kNone};
  return {build.alias(node, dy, Shape(input_shape(build.graph(), node, 0)))};
}

/// Dim `dim` of `from` in `to`, if all dims before it, and it, are the same; or if it and all after it are.
std::optional<int> same_dim(const Shape& from, const Shape& to, int dim) {
  bool front = dim < to.rank(), back = true;
  for (int i = 0; i <= dim && front; ++i) front = from[i] == to[i];
  if (front) return dim;
  const int shift = to.rank() - from.rank();
  for (int i = dim; i < from.rank() && back; ++i) back = i + shift >= 0 && from[i] == to[i + shift];
  if (back) return dim + shift;
  return {};
}

/// A cut of a dim that both shapes have; or of the first dim, where it is merged with those after it or split: pieces of
/// consecutive memory stay such.
Placed shard_reshape(const Graph& graph, const Node& node, Placing in) {
  const Shape &from = input_shape(graph, node, 0), &to = graph.value(node.outputs[0]).shape();
  if (in[0].is_partial()) return all(node, in[0]);
  if (in[0].dim == Placement::kRows) return from[-1] == to[-1] ? all(node, in[0]) : Placed{};
  if (const std::optional<int> dim = same_dim(from, to, in[0].dim)) return all(node, in[0].moved_to(*dim));
  const bool merges = to.rank() > 0 && to[0] % from[0] == 0, splits = to.rank() > 0 && to[0] > 1 && from[0] % to[0] == 0;
  if (in[0].is_shard(0) && in[0].parts == 1 && (merges || splits)) return all(node, in[0]);
  return {};
}

OpDef view(Op op) {
  OpDef def{.op = op, .in_graph_files = true};
  def.gradient = gradient_reshape;
  def.shard = shard_reshape;
  def.cost = [](const Signature&) { return Cost{}; };
  return def;
}

}  // namespace

OpDef reshape() {
  OpDef def = view(Op::reshape);
  def.attributes = {{.name = "shape", .type = AttributeDef::Type::dims, .required = true, .help = "the new dims, of which one may be -1"}};
  def.infer = infer_reshape;
  return def;
}

OpDef flatten() {
  OpDef def = view(Op::flatten);
  def.infer = infer_flatten;
  return def;
}

}  // namespace trainer::define
