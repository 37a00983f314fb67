// add, mul: of two inputs, the second of the first's shape or of its last dims (positions [seq, dim], added to every
// sample). The gradient of an input that was repeated so is summed over the leading dims. scale: one input times a
// constant.
#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "engine/core/narrow.h"
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

bool is_suffix(const Shape& whole, const Shape& last) {
  return last.rank() <= whole.rank() && std::equal(last.sizes().rbegin(), last.sizes().rend(), whole.sizes().rbegin());
}

Inference infer_binary(const Attributes&, std::span<const TensorDesc> inputs, DType compute) {
  for (const TensorDesc& input : inputs) need_values(input, compute);
  const Shape &a = inputs[0].shape, &b = inputs[1].shape;
  if (!is_suffix(a, b)) {
    const std::string swapped = is_suffix(b, a) ? "; give the larger one first" : "";
    mistake("shapes " + a.str() + " and " + b.str() + " do not fit: the second must be the first, or its last dims" +
            swapped);
  }
  return {.attributes = {}, .parameters = {}, .outputs = {{compute, a}}, .saved_names = {}};
}

/// `gradient` of a's shape, brought to that of input `index`.
ValueId reduced(GradientBuilder& build, const Node& node, std::size_t index, ValueId gradient) {
  const TensorDesc wanted = input_desc(build.graph(), node, index);
  if (wanted.shape == build.graph().value(gradient).shape()) return gradient;
  return build.node(node, Op::sum_leading, {}, {gradient}, {wanted})[0];
}

std::vector<ValueId> gradient_add(GradientBuilder& build, const Node& node, OutputGradients dy) {
  std::vector<ValueId> result{kNone, kNone};
  for (std::size_t i : {0, 1})
    if (build.needed(node.inputs[i])) result[i] = reduced(build, node, i, dy[0]);
  return result;
}

std::vector<ValueId> gradient_mul(GradientBuilder& build, const Node& node, OutputGradients dy) {
  std::vector<ValueId> result{kNone, kNone};
  const TensorDesc whole = build.graph().value(dy[0]).desc();
  for (std::size_t i : {0, 1})
    if (build.needed(node.inputs[i]))
      result[i] = reduced(build, node, i, build.node(node, Op::mul, {}, {dy[0], node.inputs[1 - i]}, {whole})[0]);
  return result;
}

/// Where b must lie for a's Shard: the same dim counted from the end; whole where a is cut in a dim that b has not.
Placement matching(const Graph& graph, const Node& node, Placement a) {
  const int lead = input_shape(graph, node, 0).rank() - input_shape(graph, node, 1).rank();
  if (a.dim == Placement::kRows) return lead == 0 ? a : Placement::replicate();
  return a.dim < lead ? Placement::replicate() : a.moved_to(a.dim - lead);
}

/// Whether a's rows are cut and b has some of them, which then are in no rank's part.
bool splits_rows(const Graph& graph, const Node& node, Placement a) {
  const int rank = input_shape(graph, node, 1).rank();
  return a.is_shard(Placement::kRows) && rank > 1 && rank < input_shape(graph, node, 0).rank();
}

/// The sum of steps of a ring and the step that follows, of the same slice.
Placed add_steps(const Node& node, const Placement& sum, const Placement& next) {
  Placement before = next, both = sum;
  before.terms = sum.terms, both.terms.last = next.terms.last;
  if (before != sum || sum.terms.first >= sum.terms.last || next.terms.first != sum.terms.last) return {};
  return all(node, both);
}

Placed shard_add(const Graph& graph, const Node& node, Placing in) {
  if (in[0].travels() || in[1].travels()) return add_steps(node, in[0], in[1]);
  if (splits_rows(graph, node, in[0])) return {};
  if (in[0].is_shard() && in[1] == matching(graph, node, in[0])) return all(node, in[0]);
  if (in[0].is_partial() && in[1].is_partial()) return all(node, in[0]);
  return {};
}

/// Linear in each of the two.
Placed shard_mul(const Graph& graph, const Node& node, Placing in) {
  if (splits_rows(graph, node, in[0])) return {};
  if (in[0].is_shard() && in[1] == matching(graph, node, in[0])) return all(node, in[0]);
  if (in[0].is_partial() && in[1].is_replicate()) return all(node, in[0]);
  if (in[0].is_replicate() && in[1].is_partial()) return all(node, in[1]);
  return {};
}

std::vector<ValueId> gradient_scale(GradientBuilder& build, const Node& node, OutputGradients dy) {
  return build.node(node, Op::scale, node.attributes, {dy[0]}, {input_desc(build.graph(), node, 0)});
}

Placed shard_sum_leading(const Graph& graph, const Node& node, Placing in) {
  const int rank = graph.value(node.outputs[0]).shape().rank(), lead = input_shape(graph, node, 0).rank() - rank;
  if (in[0].is_shard(Placement::kRows) && rank > 1) return {};
  if (in[0].is_shard() && in[0].dim >= lead) return all(node, in[0].moved_to(in[0].dim - lead));
  return all(node, Placement::partial());
}

/// A factor that is rounded first is the nearest value of the compute dtype, as a constant tensor of that dtype is.
Inference infer_scale(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  double factor = given.real("factor");
  if (given.flag("rounded")) {
    const auto single = static_cast<float>(factor);
    std::array<std::byte, 4> stored{};
    float rounded = 0;
    from_f32(&single, 1, compute, stored.data());
    to_f32(compute, stored.data(), 1, &rounded);
    factor = rounded;
  }
  return infer_elementwise({{"factor", factor}}, inputs, compute);
}

OpDef binary(Op op) {
  OpDef def{.op = op, .min_inputs = 2, .max_inputs = 2};
  def.infer = infer_binary;
  return def;
}

}  // namespace

OpDef add() {
  OpDef def = binary(Op::add);
  def.gradient = gradient_add;
  def.shard = shard_add;
  return def;
}

OpDef mul() {
  OpDef def = binary(Op::mul);
  def.gradient = gradient_mul;
  def.shard = shard_mul;
  return def;
}

OpDef scale() {
  OpDef def{.op = Op::scale};
  def.infer = infer_scale;
  def.gradient = gradient_scale;
  def.shard = [](const Graph&, const Node& node, Placing in) { return all(node, in[0]); };
  return def;
}

OpDef sum_leading() { return {.op = Op::sum_leading, .shard = shard_sum_leading}; }

}  // namespace trainer::define
