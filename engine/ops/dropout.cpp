// dropout: keeps a value, divided by 1 − p, where a counter-based random number of (node, step, sample, element) says so. Its
// gradient is dropout itself, of dy; and so a recomputed one repeats its mask.
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

Inference infer_dropout(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_values(inputs[0], compute);
  need_rank_least(inputs[0], 1);
  return {.attributes = given, .parameters = {}, .outputs = {{compute, inputs[0].shape}}, .saved_names = {}};
}

std::vector<ValueId> gradient_dropout(GradientBuilder& build, const Node& node, ValueId dy) {
  const ValueId dx = build.node(node, Op::dropout, node.attributes, {dy, node.inputs[1]}, {input_desc(build.graph(), node, 0)})[0];
  return {dx, kNone};
}

/// By samples (or by rows, where the attribute `sample` says how many elements are one sample), or by columns (where `stride` says
/// how long a whole row is): pieces whose elements are a regular part of the whole.
Placed shard_dropout(const Graph& graph, const Node& node, Placing in) {
  const int last = input_shape(graph, node, 0).rank() - 1;
  if ((in[0].is_shard(0) || in[0].is_shard(Placement::kRows) || in[0].is_shard(last)) && in[0].parts == 1 && in[1].is_replicate()) return all(node, in[0]);
  return {};
}

/// Elements of the whole batch before this rank's first, but for what the axes of the batch add: that depends on micro-batches.
Affine first_element(const Graph& graph, const Node& node) {
  Affine first;
  const Spec& x = graph.value(node.inputs[0]).spec;
  const std::int64_t last = x.whole[-1];
  std::int64_t elements = x.whole.elements();
  for (const Cut& cut : x.cuts()) {
    const std::int64_t n = graph.mesh.size(cut.axis);
    if (n == 1) continue;
    const bool columns = x.whole.rank() > 1 && cut.as.is_shard(x.whole.rank() - 1);
    if (!kBatchAxes.has(cut.axis)) first.along(cut.axis) = columns ? last / n : elements / n;
    if (!columns) elements /= n;
  }
  return first;
}

/// A part of the whole counts elements by samples, and of columns by whole rows.
void localize(const Graph& graph, const Node& node, Attributes& attributes) {
  const Shape& whole = input_shape(graph, node, 0);
  if (!graph.mesh.active(Axes::of(Axis::tensor)).empty()) attributes.set("sample", whole.elements() / whole[0]);
  for (const Cut& cut : graph.value(node.inputs[0]).spec.cuts())
    if (whole.rank() > 1 && cut.as.is_shard(whole.rank() - 1) && graph.mesh.size(cut.axis) > 1) attributes.set("stride", whole[-1]);
}

}  // namespace

OpDef dropout() {
  OpDef def{.op = Op::dropout, .in_graph_files = true};
  def.attributes = {
      {.name = "p", .type = AttributeDef::Type::real, .required = true, .below = 1, .help = "the share of values that are dropped"}};
  def.infer = infer_dropout;
  def.gradient = gradient_dropout;
  def.shard = shard_dropout;
  def.origin = first_element;
  def.localize = localize;
  def.cost = moves(1);
  def.in_place = {{0, 0}};
  def.random = true;
  return def;
}

}  // namespace trainer::define
