// batch_norm: each channel (dim 1) normalised over the samples and whatever dims follow. A graph file's node stands for
// what evaluation computes, by the running statistics, which are states of the graph; in training it is three nodes
// (engine/transform/batch_norm.h):
//
//   batch_norm_sums     x → Σ x, Σ x²             a sum over the ranks of the batch: they join it where `own` is not
//   set batch_norm_apply    x, sums → y               the gradient goes through the sums: it is whole here
//   batch_norm_update   sums → the running statistics
//
// With `own` a rank normalises by the sums of its own samples, so that apply takes them as the parts of a sum that they
// are. Sources: Ioffe and Szegedy, "Batch Normalization", 2015; PyTorch's BatchNorm and SyncBatchNorm.
#include <algorithm>

#include "engine/ops/common.h"

namespace trainer::define {
namespace {

Inference infer_batch_norm(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_values(inputs[0], compute);
  need_rank_least(inputs[0], 2);
  const Shape& x = inputs[0].shape;
  if (given.real("momentum") > 1) mistake("momentum is a share of 1 at most", "momentum");
  Inference inference;
  inference.attributes = {
      {"eps", given.real("eps")}, {"momentum", given.real("momentum")}, {"sync", given.flag("sync")}};
  inference.parameters = {{"weight", {x[1]}, ones_init()}, {"bias", {x[1]}, zeros_init()}};
  inference.states = {{"running_mean", {x[1]}, zeros_init()}, {"running_var", {x[1]}, ones_init()}};
  inference.outputs.push_back({compute, x});
  return inference;
}

bool replicate_from(Placing in, std::size_t first) {
  return std::all_of(in.begin() + static_cast<std::ptrdiff_t>(first), in.end(),
                     [](const Placement& one) { return one.is_replicate(); });
}
/// Whether operands are cut by channels, which are dim 1 of x and of sums, and all of a parameter or a statistic.
bool by_channels(const Graph& graph, const Node& node, Placing in) {
  for (std::size_t i = 0; i < in.size(); ++i)
    if (in[i] != in[0].moved_to(input_shape(graph, node, i).rank() > 1 ? 1 : 0) || !in[i].is_shard()) return false;
  return true;
}
/// How sums lie that a node reads for samples cut over ranks.
Placement sums_of_samples(const Node& node) {
  return flag(node, "own") ? Placement::partial() : Placement::replicate();
}

/// `Rule` for the operands before the residual, which lies as x does.
template <auto Rule>
Placed with_residual(const Graph& graph, const Node& node, Placing in) {
  if (!flag(node, "residual")) return Rule(graph, node, in);
  return in.back() == in[0] ? Rule(graph, node, in.first(in.size() - 1)) : Placed{};
}

Placed shard_batch_norm(const Graph& graph, const Node& node, Placing in) {
  if ((in[0].is_shard(0) && replicate_from(in, 1)) || (in[0].is_shard(1) && by_channels(graph, node, in)))
    return all(node, in[0]);
  return {};
}

Placed shard_sums(const Graph&, const Node& node, Placing in) {
  if (in[0].is_shard(0)) return all(node, Placement::partial());
  if (in[0].is_shard(1)) return all(node, in[0]);
  return {};
}

Placed shard_apply(const Graph& graph, const Node& node, Placing in) {
  if (in[0].is_shard(0) && in[1] == sums_of_samples(node) && replicate_from(in, 2)) return all(node, in[0]);
  if (in[0].is_shard(1) && by_channels(graph, node, in)) return all(node, in[0]);
  return {};
}

Placed shard_update(const Graph& graph, const Node& node, Placing in) {
  if (in[0].is_shard(1) && by_channels(graph, node, in)) return std::vector<Placement>{};
  return {};
}

/// Inputs dy, x, sums, and weight and bias of relu: linear in dy.
Placed shard_grad_sums(const Graph& graph, const Node& node, Placing in) {
  if (in[0].is_shard(0) && in[1] == in[0] && in[2] == sums_of_samples(node) && replicate_from(in, 3))
    return all(node, Placement::partial());
  if (in[0].is_partial() && replicate_from(in, 1)) return all(node, Placement::partial());
  if (!in[0].is_shard(1) || !by_channels(graph, node, in)) return {};
  std::vector<Placement> outputs(node.outputs.size(), in[0].moved_to(0));
  outputs[0] = in[0];
  return outputs;
}

/// Inputs dy, x, weight, sums, grad_sums, and bias of relu: linear in dy and grad_sums together.
Placed shard_grad(const Graph& graph, const Node& node, Placing in) {
  const Placement sums = sums_of_samples(node);
  if (in[0].is_shard(0) && in[1] == in[0] && in[2].is_replicate() && in[3] == sums && in[4] == sums &&
      replicate_from(in, 5))
    return all(node, in[0]);
  if (in[0].is_partial() && in[4].is_partial() && in[1].is_replicate() && in[2].is_replicate() &&
      in[3].is_replicate() && replicate_from(in, 5))
    return all(node, in[0]);
  if (in[0].is_shard(1) && by_channels(graph, node, in)) return all(node, in[0]);
  return {};
}

/// `value`, the sum of a rank's samples, summed over all ranks that have samples of `x`.
ValueId joined(GradientBuilder& build, const Node& node, ValueId x, ValueId value) {
  const Graph& graph = build.graph();
  Node over = node;
  for (Axis axis : graph.mesh.active(kBatchAxes))
    if (graph.value(x).spec.on(axis).is_shard(0)) over.axes = over.axes | axis;
  if (over.axes.empty()) return value;
  return build.node(over, Op::all_reduce, {}, {value}, {graph.value(value).desc()})[0];
}

/// Of x through everything that the output depends on: the sums get no gradient.
std::vector<ValueId> gradient_apply(GradientBuilder& build, const Node& node, OutputGradients dy) {
  const ValueId x = node.inputs[0], sums = node.inputs[1], weight = node.inputs[2], bias = node.inputs[3];
  std::vector<ValueId> result(node.inputs.size(), kNone), parameters;
  for (ValueId parameter : {weight, bias})
    if (build.needed(parameter)) parameters.push_back(parameter);
  if (parameters.empty() && !build.needed(x)) return result;
  std::vector<TensorDesc> outputs{build.graph().value(sums).desc()};
  for (ValueId parameter : parameters)
    outputs.push_back({build.reduce_dtype(), build.graph().value(parameter).shape()});
  Attributes attributes = node.attributes;
  attributes.set("weight", build.needed(weight));
  attributes.set("bias", build.needed(bias));
  ValueId grad_sums =
      build.node_with_gradients(node, Op::batch_norm_grad_sums, attributes, {dy[0], x, sums}, outputs, parameters)[0];
  if (!build.needed(x)) return result;
  if (!flag(node, "own")) grad_sums = joined(build, node, x, grad_sums);
  result[0] = build.node(node, Op::batch_norm_grad, node.attributes, {dy[0], x, weight, sums, grad_sums},
                         {input_desc(build.graph(), node, 0)})[0];
  return result;
}

/// `count` is of the whole batch in a graph; a rank that takes its own sums counts its own elements. `x` is the index
/// of x among the inputs.
auto count_of_rank(std::size_t x) {
  return [x](const Graph& graph, const Node& node, Attributes& attributes) {
    if (!flag(node, "own")) return;
    const Shape whole = input_shape(graph, node, x), local = graph.local_shape(node.inputs[x]);
    attributes.set("count", integer(node, "count") / whole[0] * local[0]);
  };
}

}  // namespace

OpDef batch_norm() {
  OpDef def{.op = Op::batch_norm};
  def.infer = infer_batch_norm;
  def.shard = with_residual<shard_batch_norm>;
  return def;
}

OpDef batch_norm_sums() {
  OpDef def{.op = Op::batch_norm_sums};
  def.shard = shard_sums;
  return def;
}

OpDef batch_norm_apply() {
  OpDef def{.op = Op::batch_norm_apply};
  def.gradient = gradient_apply;
  def.shard = with_residual<shard_apply>;
  def.localize = count_of_rank(0);
  return def;
}

OpDef batch_norm_update() { return {.op = Op::batch_norm_update, .shard = shard_update}; }

OpDef batch_norm_grad_sums() {
  OpDef def{.op = Op::batch_norm_grad_sums};
  def.shard = shard_grad_sums;
  def.localize = count_of_rank(1);
  return def;
}

OpDef batch_norm_grad() {
  OpDef def{.op = Op::batch_norm_grad};
  def.shard = shard_grad;
  def.localize = count_of_rank(1);
  return def;
}

}  // namespace trainer::define
