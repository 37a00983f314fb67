// cross_entropy, mse, and what is counted for them. A loss is a sum (f64) and a count; counts depend only on targets,
// and so are known before the step. Backward starts from the seed, loss_scale / count, which the gradient reads.
//
// Where the classes are cut over ranks, cross-entropy is three nodes: `cross_entropy_stats` of a rank's logits, an
// all_gather of them, and `cross_entropy_gathered`. The last takes the logits too, which it does not read: its gradient
// in them is closed-form, that of the whole, and takes the statistics as constants.
#include <algorithm>

#include "engine/ops/common.h"

namespace trainer::define {
namespace {

const TensorDesc kSum{DType::f64, {1}};

Inference infer_cross_entropy(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_values(inputs[0], compute, "logits");
  need_rank_least(inputs[0], 2, "logits");
  need_ids(inputs[1], "targets");
  const Shape& logits = inputs[0].shape;
  const Shape rows(logits.sizes().first(logits.sizes().size() - 1));
  if (inputs[1].shape != rows)
    mistake("logits " + logits.str() + " need targets of shape " + rows.str() + ", not " + inputs[1].shape.str());
  return {
      .attributes = given, .parameters = {}, .outputs = {kSum, {DType::f32, {logits.rows()}}}, .saved_names = {"lse"}};
}

/// `seed` stands for the gradient of the sum.
std::vector<ValueId> gradient_cross_entropy(GradientBuilder& build, const Node& node, OutputGradients seed) {
  const ValueId logits = node.inputs[0], lse = node.outputs[1];
  if (!build.needed(logits)) return {kNone, kNone};
  return {build.node(node, Op::cross_entropy_grad, node.attributes, {logits, node.inputs[1], lse, seed[0]},
                     {input_desc(build.graph(), node, 0)})[0],
          kNone};
}

/// Logits and targets cut alike, not by classes.
bool cut_by_rows(const Shape& logits, Placing in, std::size_t targets) {
  return in[0].is_shard() && in[0].dim < logits.rank() - 1 && in[targets] == in[0];
}

Placed shard_cross_entropy(const Graph& graph, const Node& node, Placing in) {
  const Shape& logits = input_shape(graph, node, 0);
  if (!cut_by_rows(logits, in, 1)) return {};
  return std::vector<Placement>{Placement::partial(), rows_of(logits, in[0])};
}

/// The seed is that of the sum, or of each sequence.
std::vector<ValueId> gradient_gathered(GradientBuilder& build, const Node& node, OutputGradients seed) {
  const ValueId logits = node.inputs[0], targets = node.inputs[2], lse = node.outputs[1];
  if (!build.needed(logits)) return {kNone, kNone, kNone};
  const TensorDesc dlogits = input_desc(build.graph(), node, 0);
  return {build.node(node, Op::cross_entropy_grad, node.attributes, {logits, targets, lse, seed[0]}, {dlogits})[0],
          kNone, kNone};
}

// A rank's statistics are [1, rows, 5]; of all ranks along the axes that cut the classes, [parts, rows, 5].

Placement stats_rows_of(const Shape& shape, Placement placement) { return rows_of(shape, placement).moved_to(1); }

/// Logits cut by classes, everything else whole.
bool cut_by_classes(const Shape& logits, Placing in) {
  return in[0] == Placement::shard(logits.rank() - 1) &&
         std::all_of(in.begin() + 1, in.end(), [](const Placement& other) { return other.is_replicate(); });
}

Affine first_class(const Graph& graph, const Node& node) {
  return origin(graph.value(node.inputs[0]).spec, input_shape(graph, node, 0).rank() - 1, graph.mesh);
}

Placed shard_stats(const Graph& graph, const Node& node, Placing in) {
  const Shape& logits = input_shape(graph, node, 0);
  if (cut_by_rows(logits, in, 1)) return all(node, stats_rows_of(logits, in[0]));
  if (cut_by_classes(logits, in)) return all(node, Placement::shard(0));
  return {};
}

Placed shard_gathered(const Graph& graph, const Node& node, Placing in) {
  const Shape& logits = input_shape(graph, node, 0);
  if (cut_by_classes(logits, in)) return all(node, Placement::replicate());
  if (!cut_by_rows(logits, in, 2) || in[1] != stats_rows_of(logits, in[0])) return {};
  return std::vector<Placement>{Placement::partial(), rows_of(logits, in[0])};
}

/// The logits are not read.
Cost cost_of_gathered(const Signature& signature) {
  Cost cost = moved(signature);
  cost.bytes_read -= static_cast<double>(signature.operands[0].bytes());
  return cost;
}

/// A sequence is on one rank.
Placed shard_sequence_nll(const Graph& graph, const Node& node, Placing in) {
  const Shape& logits = input_shape(graph, node, 0);
  if (cut_by_classes(logits, in)) return all(node, Placement::replicate());
  if (in[0] != Placement::shard(0) || in[2] != in[0] || in[1] != stats_rows_of(logits, in[0])) return {};
  return std::vector<Placement>{in[0], rows_of(logits, in[0])};
}

Placed shard_correct_gathered(const Graph& graph, const Node& node, Placing in) {
  if (in[1].is_shard() && in[0] == stats_rows_of(input_shape(graph, node, 1), in[1]))
    return all(node, Placement::partial());
  return {};
}

/// Of several seeds each is that of a sample.
bool has_its_seeds(std::int64_t seeds, Placement logits, Placement seed) {
  if (seeds > 1 && logits.dim == 0) return logits == Placement::shard(0) && seed == logits;
  return seed.is_replicate() && (seeds == 1 || logits.dim > 0);
}

Placed shard_cross_entropy_grad(const Graph& graph, const Node& node, Placing in) {
  const Shape& logits = input_shape(graph, node, 0);
  const bool seeds = has_its_seeds(input_shape(graph, node, 3).elements(), in[0], in[3]);
  if (cut_by_rows(logits, in, 1) && in[2] == rows_of(logits, in[0]) && seeds) return all(node, in[0]);
  if (node.attributes.has("classes") && cut_by_classes(logits, in)) return all(node, in[0]);
  return {};
}

Placed shard_cross_entropy_and_grad(const Graph& graph, const Node& node, Placing in) {
  const Shape& logits = input_shape(graph, node, 0);
  if (!cut_by_rows(logits, in, 1) || !in[2].is_replicate()) return {};
  return std::vector<Placement>{Placement::partial(), in[0]};
}

Inference infer_mse(const Attributes& given, std::span<const TensorDesc> inputs, DType compute) {
  need_values(inputs[0], compute, "the prediction");
  if (inputs[1].dtype != DType::f32) need_values(inputs[1], compute, "the target");
  if (inputs[0].shape != inputs[1].shape)
    mistake("the prediction has shape " + inputs[0].shape.str() + ", the target " + inputs[1].shape.str());
  return {.attributes = given, .parameters = {}, .outputs = {kSum}, .saved_names = {}};
}

std::vector<ValueId> gradient_mse(GradientBuilder& build, const Node& node, OutputGradients seed) {
  if (!build.needed(node.inputs[0])) return {kNone, kNone};
  return {build.node(node, Op::mse_grad, {}, {node.inputs[0], node.inputs[1], seed[0]},
                     {input_desc(build.graph(), node, 0)})[0],
          kNone};
}

/// Sums over elements that are cut alike are partial sums.
Placed shard_sum(const Graph&, const Node& node, Placing in) {
  for (const Placement& input : in)
    if (!input.is_shard() || input != in[0]) return {};
  return all(node, Placement::partial());
}

Placed shard_mse_grad(const Graph&, const Node& node, Placing in) {
  if (in[0].is_shard() && in[1] == in[0] && in[2].is_replicate()) return all(node, in[0]);
  return {};
}

Placed shard_correct_count(const Graph& graph, const Node& node, Placing in) {
  if (cut_by_rows(input_shape(graph, node, 0), in, 1)) return all(node, Placement::partial());
  return {};
}

}  // namespace

OpDef cross_entropy() {
  OpDef def{.op = Op::cross_entropy, .min_inputs = 2, .max_inputs = 2};
  def.infer = infer_cross_entropy;
  def.gradient = gradient_cross_entropy;
  def.shard = shard_cross_entropy;
  def.loss = LossDef{Op::cross_entropy_count, {"ignore_index"}, true};
  return def;
}

OpDef cross_entropy_grad() {
  OpDef def{.op = Op::cross_entropy_grad};
  def.shard = shard_cross_entropy_grad;
  def.origin = first_class;
  return def;
}

OpDef cross_entropy_and_grad() { return {.op = Op::cross_entropy_and_grad, .shard = shard_cross_entropy_and_grad}; }

OpDef cross_entropy_stats() { return {.op = Op::cross_entropy_stats, .shard = shard_stats, .origin = first_class}; }

OpDef cross_entropy_gathered() {
  OpDef def{.op = Op::cross_entropy_gathered};
  def.gradient = gradient_gathered;
  def.shard = shard_gathered;
  def.origin = first_class;
  def.cost = cost_of_gathered;
  def.loss = LossDef{Op::cross_entropy_count, {"ignore_index"}, true};
  return def;
}

OpDef sequence_nll() {
  OpDef def{.op = Op::sequence_nll};
  def.gradient = gradient_gathered;
  def.shard = shard_sequence_nll;
  def.origin = first_class;
  def.cost = cost_of_gathered;
  return def;
}

OpDef correct_count_gathered() { return {.op = Op::correct_count_gathered, .shard = shard_correct_gathered}; }

OpDef cross_entropy_count() { return {.op = Op::cross_entropy_count, .shard = shard_sum}; }

OpDef correct_count() { return {.op = Op::correct_count, .shard = shard_correct_count}; }

OpDef mse() {
  OpDef def{.op = Op::mse, .min_inputs = 2, .max_inputs = 2};
  def.infer = infer_mse;
  def.gradient = gradient_mse;
  def.shard = shard_sum;
  def.loss = LossDef{Op::mse_count};
  return def;
}

OpDef mse_grad() { return {.op = Op::mse_grad, .shard = shard_mse_grad}; }

OpDef mse_count() {
  OpDef def{.op = Op::mse_count, .shard = shard_sum};
  def.cost = [](const Signature&) { return Cost{}; };  // The number is in the shape.
  return def;
}

}  // namespace trainer::define
