// dropout: keeps a value, divided by 1 − p, where a counter-based random number of (node, step, sample, element) says
// so. Its gradient is dropout itself, of dy; and so a recomputed one repeats its mask.
#include "engine/ops/common.h"
#include "engine/ops/refuse.h"

namespace trainer::define {
namespace {

Inference infer_dropout(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_rank_least(inputs[0], 1);
  return infer_elementwise(given, inputs, compute);
}

std::vector<ValueId> gradient_dropout(GradientBuilder& build, const Node& node, OutputGradients dy) {
  const ValueId dx =
      build.node(node, Op::dropout, node.attributes, {dy[0], node.inputs[1]}, {input_desc(build.graph(), node, 0)})[0];
  return {dx, kNone};
}

/// By rows, or by any dim: the elements of a rank from this dim on lie together, and the same distance from one such
/// row to the next.
Placed shard_dropout(const Graph&, const Node& node, Placing in) {
  if (in[0].is_shard() && in[0].parts == 1 && in[1].is_replicate()) return all(node, in[0]);
  return {};
}

std::int64_t elements_from(const Shape& shape, int dim) {
  std::int64_t elements = 1;
  for (; dim < shape.rank(); ++dim) elements *= shape[dim];
  return elements;
}

/// How a rank's elements lie in the whole batch: those of the dims from `inner` on together, in rows that are apart.
struct Lie {
  Affine first;  ///< place of the first, but for what the axes of the batch add: that depends on micro-batches
  int inner = 0;
  std::int64_t row = 0, stride = 0;  ///< elements of a row, and from one row to the next
  bool zigzag = false;               ///< a row is half of a rank's part of a sample
  std::optional<Axis> irregular{};   ///< an axis whose cut leaves no such rows
};

Lie lie_of(const Graph& graph, const Node& node) {
  const Spec& x = graph.value(node.inputs[0]).spec;
  Shape local = x.whole;
  Lie lie;
  for (const Cut& cut : x.cuts()) {
    const std::int64_t n = graph.mesh.size(cut.axis);
    if (n == 1) continue;
    std::int64_t step = 0;
    if (cut.as.dim != Placement::kRows) {
      step = local[cut.as.dim] / n * elements_from(x.whole, cut.as.dim + 1) / (cut.as.is_zigzag() ? 2 : 1);
      lie.zigzag = lie.zigzag || cut.as.is_zigzag();
      if (lie.inner > 0 && cut.as.dim > 0) lie.irregular = cut.axis;
      if (cut.as.dim > 0) lie.inner = cut.as.dim;
      local[cut.as.dim] /= n;
    } else if (const std::int64_t outer = local.elements() / elements_from(local, lie.inner); outer == 1) {
      if (lie.zigzag) lie.irregular = cut.axis;
      step = local.elements() / n;  // a run of the one row there is
      lie.inner = 0;
    } else {
      if (outer % n != 0) lie.irregular = cut.axis;
      step = outer / n * elements_from(x.whole, lie.inner);
    }
    if (!kBatchAxes.has(cut.axis)) lie.first.along(cut.axis) = step;
  }
  lie.row = elements_from(local, lie.inner) / (lie.zigzag ? 2 : 1), lie.stride = elements_from(x.whole, lie.inner);
  if (lie.zigzag && lie.inner != 1) lie.irregular = Axis::context;
  return lie;
}

/// A part of the whole counts elements by samples.
void localize(const Graph& graph, const Node& node, Attributes& attributes) {
  const Shape& whole = input_shape(graph, node, 0);
  const Lie lie = lie_of(graph, node);
  if (lie.irregular)
    refuse(graph, node, *lie.irregular,
           "dropout takes one cut of each sample, or a cut of its rows that leaves whole parts of samples");
  if (!graph.mesh.active(kSequenceAxes | Axis::tensor).empty()) attributes.set("sample", whole.elements() / whole[0]);
  if (lie.inner == 0) return;
  if (lie.inner < whole.rank() - 1 || lie.zigzag) attributes.set("row", lie.row);
  if (lie.zigzag) attributes.set("zigzag", true);
  attributes.set("stride", lie.stride);
}

}  // namespace

OpDef dropout() {
  OpDef def{.op = Op::dropout};
  def.infer = infer_dropout;
  def.gradient = gradient_dropout;
  def.shard = shard_dropout;
  def.origin = [](const Graph& graph, const Node& node) { return lie_of(graph, node).first; };
  def.localize = localize;
  return def;
}

}  // namespace trainer::define
