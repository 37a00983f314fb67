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
  if ((in[0].is_shard(0) || in[0].is_shard(last)) && in[0].parts == 1 && in[1].is_replicate()) return all(node, in[0]);
  return {};
}

}  // namespace

OpDef dropout() {
  OpDef def{.op = Op::dropout, .in_graph_files = true};
  def.attributes = {
      {.name = "p", .type = AttributeDef::Type::real, .required = true, .below = 1, .help = "the share of values that are dropped"}};
  def.infer = infer_dropout;
  def.gradient = gradient_dropout;
  def.shard = shard_dropout;
  def.cost = moves(1);
  def.in_place = {{0, 0}};
  def.random = true;
  return def;
}

}  // namespace trainer::define
