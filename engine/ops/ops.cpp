// The declarations by op, and what follows from them: signatures, origins, propagation.
#include <algorithm>

#include "engine/core/check.h"
#include "engine/ops/define.h"

namespace trainer {

std::span<const OpDef> definitions() {
  static const std::vector<OpDef> list = [] {
    std::vector<OpDef> all{
#define TRAINER_OP(name, kernel) define::name(),
#include "engine/core/ops.inc"
    };
    for (OpDef& def : all) def.in_place = in_place_of(record(def.op));
    return all;
  }();
  return list;
}

namespace {

int dim_of(const Node& node) { return static_cast<int>(integer(node, "dim")); }

// What a collective makes of its operand along the axis whose ranks it joins. `replicate` and `all_reduce`,
// `all_gather` and `reduce_scatter` are each other's gradients.
std::optional<std::vector<Placement>> collective_result(const Node& node, const Placement& in, int ranks) {
  const auto made = [](const Placement& placement) { return std::vector<Placement>{placement}; };
  if (node.op == Op::replicate && in.is_replicate()) return made(in);
  if (node.op == Op::all_reduce && in.is_partial()) return made(Placement::replicate());
  if (node.op == Op::all_gather && in.is_shard(dim_of(node)) && in.parts == 1) return made(Placement::replicate());
  if (node.op == Op::reduce_scatter && in.is_partial()) return made(Placement::shard(dim_of(node)));
  if (node.op == Op::shift && in.is_shard()) return made(in.shifted(ranks));
  if (node.op == Op::all_to_all && in == Placement::shard(1 - dim_of(node)))
    return made(Placement::shard(dim_of(node)));
  return std::nullopt;
}

// What is on its way round a ring is no value of the model yet: only these take it.
bool takes_travellers(Op op) {
  return op == Op::attention_block || op == Op::attention_block_grad || op == Op::add || op == Op::shift;
}

}  // namespace

const OpDef& definition(Op op) { return definitions()[static_cast<std::size_t>(op)]; }

double busiest(const Signature& signature) {
  const OpDef& def = definition(signature.op);
  return def.busiest ? def.busiest(signature) : 1;
}

Cost cost_of(const Signature& signature) {
  const OpDef& def = definition(signature.op);
  if (def.cost) return def.cost(signature);
  Cost cost = moved(signature);
  if (def.flops) cost.flops = def.flops(signature);
  return cost;
}

Cost moved(const Signature& signature) {
  using Role = OperandDef::Role;
  const bool accumulate = accumulates(signature);
  Cost cost;
  for (const OperandPlace& place : operand_places(signature)) {
    const Role role = place.def->role;
    double bytes = 0;
    for (int i = place.first; i < place.first + place.count; ++i)
      bytes += static_cast<double>(signature.operands[static_cast<std::size_t>(i)].bytes());
    if (role != Role::output || (place.def->adds && accumulate)) cost.bytes_read += bytes;
    if (role == Role::output || role == Role::update) cost.bytes_written += bytes;
  }
  return cost;
}

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

std::optional<std::vector<Placement>> propagate(const Graph& graph, const Node& node, std::span<const Placement> inputs,
                                                std::int64_t step) {
  const OpDef& def = definition(node.op);
  if (!takes_travellers(node.op) && std::ranges::any_of(inputs, &Placement::travels)) return std::nullopt;
  if (!std::all_of(inputs.begin(), inputs.end(), [](const Placement& placement) { return placement.is_replicate(); }))
    return def.shard ? def.shard(graph, node, inputs) : std::nullopt;
  if (step != 0 && def.shard_by_origin) return def.shard_by_origin(graph, node, step);
  return std::vector<Placement>(node.outputs.size());
}

std::optional<std::vector<Placement>> propagate(const Graph& graph, const Node& node, Axis axis) {
  if (node.axes.has(axis))
    return collective_result(node, graph.value(node.inputs[0]).spec.on(axis), graph.mesh.size(axis));
  std::vector<Placement> inputs;
  inputs.reserve(node.inputs.size());
  for (ValueId id : node.inputs) inputs.push_back(graph.value(id).spec.on(axis));
  return propagate(graph, node, inputs, origin_of(graph, node).along(axis));
}

}  // namespace trainer
