// The list of ops. The switch has no default: an op without a declaration does not compile.
#include <algorithm>

#include "engine/core/check.h"
#include "engine/ops/define.h"

namespace trainer {
namespace {

OpDef define_op(Op op) {
  switch (op) {
    case Op::embedding:
      return define::embedding();
    case Op::positions:
      return define::positions();
    case Op::linear:
      return define::linear();
    case Op::layer_norm:
      return define::layer_norm();
    case Op::rms_norm:
      return define::rms_norm();
    case Op::attention:
      return define::attention();
    case Op::gelu:
      return define::gelu();
    case Op::relu:
      return define::relu();
    case Op::silu:
      return define::silu();
    case Op::tanh:
      return define::tanh();
    case Op::sigmoid:
      return define::sigmoid();
    case Op::add:
      return define::add();
    case Op::mul:
      return define::mul();
    case Op::scale:
      return define::scale();
    case Op::dropout:
      return define::dropout();
    case Op::reshape:
      return define::reshape();
    case Op::flatten:
      return define::flatten();
    case Op::conv2d:
      return define::conv2d();
    case Op::max_pool2d:
      return define::max_pool2d();
    case Op::avg_pool2d:
      return define::avg_pool2d();
    case Op::cross_entropy:
      return define::cross_entropy();
    case Op::mse:
      return define::mse();
    case Op::embedding_grad:
      return define::embedding_grad();
    case Op::positions_grad:
      return define::positions_grad();
    case Op::linear_grad_input:
      return define::linear_grad_input();
    case Op::linear_grad_weight:
      return define::linear_grad_weight();
    case Op::bias_grad:
      return define::bias_grad();
    case Op::layer_norm_grad:
      return define::layer_norm_grad();
    case Op::rms_norm_grad:
      return define::rms_norm_grad();
    case Op::attention_grad:
      return define::attention_grad();
    case Op::gelu_grad:
      return define::gelu_grad();
    case Op::relu_grad:
      return define::relu_grad();
    case Op::silu_grad:
      return define::silu_grad();
    case Op::tanh_grad:
      return define::tanh_grad();
    case Op::sigmoid_grad:
      return define::sigmoid_grad();
    case Op::sum_leading:
      return define::sum_leading();
    case Op::conv2d_grad_input:
      return define::conv2d_grad_input();
    case Op::conv2d_grad_weight:
      return define::conv2d_grad_weight();
    case Op::max_pool2d_grad:
      return define::max_pool2d_grad();
    case Op::avg_pool2d_grad:
      return define::avg_pool2d_grad();
    case Op::cross_entropy_grad:
      return define::cross_entropy_grad();
    case Op::mse_grad:
      return define::mse_grad();
    case Op::cross_entropy_count:
      return define::cross_entropy_count();
    case Op::mse_count:
      return define::mse_count();
    case Op::correct_count:
      return define::correct_count();
    case Op::cross_entropy_stats:
      return define::cross_entropy_stats();
    case Op::cross_entropy_gathered:
      return define::cross_entropy_gathered();
    case Op::correct_count_gathered:
      return define::correct_count_gathered();
    case Op::split:
      return define::split();
    case Op::concat:
      return define::concat();
    case Op::replicate:
      return define::replicate();
    case Op::all_reduce:
      return define::all_reduce();
    case Op::all_gather:
      return define::all_gather();
    case Op::reduce_scatter:
      return define::reduce_scatter();
    case Op::zero:
      return define::zero();
    case Op::cast:
      return define::cast();
    case Op::pack_weight:
      return define::pack_weight();
    case Op::loss_seed:
      return define::loss_seed();
    case Op::sum_squares:
      return define::sum_squares();
    case Op::update_scalars:
      return define::update_scalars();
    case Op::sgd:
      return define::sgd();
    case Op::adam:
      return define::adam();
    case Op::adamw:
      return define::adamw();
    case Op::lion:
      return define::lion();
    case Op::muon_momentum:
      return define::muon_momentum();
    case Op::muon_orthogonalize:
      return define::muon_orthogonalize();
    case Op::muon:
      return define::muon();
    case Op::outer_step:
      return define::outer_step();
    case Op::apply_delayed:
      return define::apply_delayed();
    case Op::compress_bf16:
      return define::compress_bf16();
    case Op::quantize_int8:
      return define::quantize_int8();
    case Op::dequantize_int8:
      return define::dequantize_int8();
    case Op::dequantize_sum_int8:
      return define::dequantize_sum_int8();
    case Op::top_k_compress:
      return define::top_k_compress();
    case Op::top_k_sum:
      return define::top_k_sum();
  }
  CHECK(false, "an op without a declaration");
}

}  // namespace

std::span<const OpDef> definitions() {
  static const std::vector<OpDef> list = [] {
    std::vector<OpDef> defs;
    defs.reserve(kNumOps);
    for (int i = 0; i < kNumOps; ++i) defs.push_back(define_op(static_cast<Op>(i)));
    return defs;
  }();
  return list;
}

namespace {

// What a collective makes of its operand along the axis whose ranks it joins. `replicate` and `all_reduce`, `all_gather` and
// `reduce_scatter` are each other's gradients.
std::optional<std::vector<Placement>> collective_result(const Node& node, const Placement& in) {
  const auto made = [](const Placement& placement) { return std::vector<Placement>{placement}; };
  const auto dim = static_cast<int>(node.attributes.integer("dim", 0));
  if (node.op == Op::replicate && in.is_replicate()) return made(in);
  if (node.op == Op::all_reduce && in.is_partial()) return made(Placement::replicate());
  if (node.op == Op::all_gather && in.is_shard(dim) && in.parts == 1) return made(Placement::replicate());
  if (node.op == Op::reduce_scatter && in.is_partial()) return made(Placement::shard(dim));
  return std::nullopt;
}

}  // namespace

const OpDef& definition(Op op) { return definitions()[static_cast<std::size_t>(op)]; }

Cost cost_of(const Signature& signature) { return definition(signature.op).cost(signature); }

Signature signature_of(const Graph& graph, const Node& node) {
  Signature signature{node.op, node.attributes, {}};
  if (const auto& localize = definition(node.op).localize) localize(graph, node, signature.attributes);
  signature.operands.reserve(node.inputs.size() + node.outputs.size());
  for (ValueId id : node.inputs) signature.operands.push_back(graph.local(id));
  for (ValueId id : node.outputs) signature.operands.push_back(graph.local(id));
  return signature;
}

Affine origin_of(const Graph& graph, const Node& node) {
  const auto& origin = definition(node.op).origin;
  return origin ? origin(graph, node) : Affine{};
}

std::optional<std::vector<Placement>> propagate(const Graph& graph, const Node& node, std::span<const Placement> inputs, std::int64_t step) {
  const OpDef& def = definition(node.op);
  if (!std::all_of(inputs.begin(), inputs.end(), [](const Placement& placement) { return placement.is_replicate(); }))
    return def.shard ? def.shard(graph, node, inputs) : std::nullopt;
  if (step != 0 && def.shard_by_origin) return def.shard_by_origin(graph, node, step);
  return std::vector<Placement>(node.outputs.size());
}

std::optional<std::vector<Placement>> propagate(const Graph& graph, const Node& node, Axis axis) {
  if (node.axes.has(axis)) return collective_result(node, graph.value(node.inputs[0]).spec.on(axis));
  std::vector<Placement> inputs;
  inputs.reserve(node.inputs.size());
  for (ValueId id : node.inputs) inputs.push_back(graph.value(id).spec.on(axis));
  return propagate(graph, node, inputs, origin_of(graph, node).along(axis));
}

}  // namespace trainer
