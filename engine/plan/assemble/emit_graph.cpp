// How values of a graph become regions, and its nodes launches and collectives.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/core/check.h"
#include "engine/core/op_record.h"
#include "engine/ops/op_def.h"
#include "engine/plan/assemble/emitter.h"

namespace trainer {
namespace {

/// Bytes before a value in the buffer of the figures; -1: it is none of them.
std::int64_t place_in_figures(const Graph& graph, ValueId id) {
  std::int64_t offset = 0;
  for (const ValueId figure : graph.loss.figures) {
    if (figure == id) return offset;
    offset += graph.value(figure).desc().bytes();
  }
  return -1;
}

/// Whether the node adds to sums over micro-batches that are there; from now on they are.
bool goes_on(GraphMemory& memory, const Node& node) {
  bool there = false;
  for (const ValueId output : node.outputs) {
    if (!memory.graph->loss.sums_up(output)) continue;
    there = std::ranges::find(memory.begun, output) != memory.begun.end();
    if (!there) memory.begun.push_back(output);
  }
  return there;
}

}  // namespace

BufferId& GraphMemory::held(ValueId storage, int micro_batch, int chunk) {
  const std::int32_t slot = slots[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(storage)];
  CHECK(slot >= 0, "value " + graph->value(storage).name + " is of no concern to this chunk");
  return values[static_cast<std::size_t>(micro_batch) * num_slots + static_cast<std::size_t>(slot)];
}

BufferId GraphMemory::held(ValueId storage, int micro_batch, int chunk) const {
  const std::vector<std::int32_t>& of_chunk = slots[static_cast<std::size_t>(chunk)];
  const std::int32_t slot = of_chunk.empty() ? -1 : of_chunk[static_cast<std::size_t>(storage)];
  return slot < 0 ? -1 : values[static_cast<std::size_t>(micro_batch) * num_slots + static_cast<std::size_t>(slot)];
}

GraphMemory Emitter::enter(const CutGraph& cut) {
  const Graph& graph = *cut.graph;
  GraphMemory memory;
  memory.cut = &cut;
  memory.graph = &graph;
  memory.names.assign(graph.values.size(), -1);
  memory.prepared.resize(graph.nodes.size());
  memory.places.assign(graph.values.size(), nullptr);
  for (const Parameter& parameter : graph.parameters)
    if (const auto found = places_.find(graph.value(parameter.value).name); found != places_.end())
      memory.places[static_cast<std::size_t>(parameter.value)] = &found->second;
  assign_slots(memory);

  std::vector<bool> read_here(graph.values.size(), false);
  for (int chunk = 0; chunk < cut.num_chunks(); ++chunk)
    if (cut.stage_of(chunk) == stage_)
      for (NodeId id : cut.nodes[static_cast<std::size_t>(chunk)])
        for (ValueId input : graph.nodes[static_cast<std::size_t>(id)].inputs)
          read_here[static_cast<std::size_t>(graph.storage(input))] = true;
  memory.fields.assign(graph.values.size(), -1);
  for (ValueId input : graph.inputs) {
    if (!read_here[static_cast<std::size_t>(input)]) continue;
    const Value& value = graph.value(input);
    // A micro-batch's part begins where kernels may read it; on the host they lie one after the other.
    const std::int64_t bytes = graph.local(input).bytes(), stride = aligned(bytes);
    const std::int32_t source = field(value.name, Field::Kind::batch, value.spec, cut.micro_batches);
    const BufferId id = buffer(value.name, Category::inputs, stride * (cut.micro_batches - 1) + bytes);
    memory.fields[static_cast<std::size_t>(input)] = id;
    if (stride == bytes)
      issue(Stream::copy, CopyIn{source, 0, {whole(id)}});
    else
      for (int i = 0; i < cut.micro_batches; ++i)
        issue(Stream::copy, CopyIn{source, i * bytes, {Region{id, i * stride, bytes}}});
  }
  for (const GraphState& held : graph.states)
    if (const auto id = static_cast<std::size_t>(held.value); read_here[id])
      memory.fields[id] = state(held, graph.value(held.value), graph.local(held.value).bytes());
  for (const auto& [id, into] : {std::pair(graph.step, &memory.step), {graph.position, &memory.position}})
    if (id != kNone && read_here[static_cast<std::size_t>(id)]) *into = scalar_in(graph, id);
  if (graph.loss.sum != kNone) memory.loss = buffer("loss", Category::activations, size_of(DType::f64));
  if (!graph.loss.figures.empty()) {
    const auto sums = static_cast<std::int64_t>(graph.loss.figure_names.size()) + 1;
    memory.figures = buffer("figures", Category::activations, sums * size_of(DType::f64));
  }
  return memory;
}

// What the step provides, an i32.
BufferId Emitter::scalar_in(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  const BufferId into = buffer(value.name, Category::inputs, size_of(DType::i32));
  issue(Stream::copy, CopyIn{field(value.name, Field::Kind::scalar, value.spec), 0, {whole(into)}});
  return into;
}

// The buffer of a state, which programs share.
BufferId Emitter::state(const GraphState& state, const Value& value, std::int64_t bytes) {
  const auto known = std::ranges::find(role_.states, value.name, &State::name);
  if (known != role_.states.end()) {
    CHECK(known->spec == value.spec, "programs hold the same state " + value.name);
    return known->region.buffer;
  }
  const BufferId id = persistent(value.name, Category::activations, bytes);
  role_.states.push_back({value.name, value.spec, whole(id), state.initial});
  return id;
}

// What the nodes of this stage's chunks touch, and what passes through.
void Emitter::assign_slots(GraphMemory& memory) const {
  const CutGraph& cut = *memory.cut;
  const Graph& graph = *memory.graph;
  memory.slots.resize(static_cast<std::size_t>(cut.num_chunks()));
  std::int32_t next = 0;
  for (int chunk = 0; chunk < cut.num_chunks(); ++chunk) {
    if (cut.stage_of(chunk) != stage_) continue;
    std::vector<std::int32_t>& slots = memory.slots[static_cast<std::size_t>(chunk)];
    slots.assign(graph.values.size(), -1);
    const auto touch = [&](ValueId id) {
      const ValueId storage = graph.storage(id);
      std::int32_t& slot = slots[static_cast<std::size_t>(storage)];
      if (graph.value(storage).kind == ValueKind::activation && slot < 0) slot = next++;
    };
    for (NodeId id : cut.nodes[static_cast<std::size_t>(chunk)]) {
      const Node& node = graph.nodes[static_cast<std::size_t>(id)];
      for (ValueId input : node.inputs) touch(input);
      for (ValueId output : node.outputs) touch(output);
    }
    for (int boundary : {chunk - 1, chunk}) {
      if (boundary < 0 || boundary + 1 >= cut.num_chunks()) continue;
      for (ValueId id : cut.boundaries[static_cast<std::size_t>(boundary)].activations) touch(id);
      for (ValueId id : cut.boundaries[static_cast<std::size_t>(boundary)].gradients) touch(id);
    }
  }
  memory.num_slots = static_cast<std::size_t>(next);
  const int listed = cut.rounds != nullptr ? cut.rounds->left : cut.micro_batches;
  memory.values.assign(static_cast<std::size_t>(listed) * memory.num_slots, -1);
}

NameId Emitter::value_name(GraphMemory& memory, ValueId id) {
  NameId& known = memory.names[static_cast<std::size_t>(id)];
  if (known < 0) known = name(memory.graph->value(id).name);
  return known;
}

Region Emitter::region(const GraphMemory& memory, ValueId id, int micro_batch, int chunk) const {
  const Graph& graph = *memory.graph;
  const ValueId storage = graph.storage(id);
  const Value& value = graph.value(storage);
  const std::int64_t bytes = graph.local(id).bytes();
  if (storage == graph.seed) return whole(memory.seed);
  if (storage == graph.step) return whole(memory.step);
  if (storage == graph.position) return whole(memory.position);
  if (storage == graph.loss.sum) return whole(memory.loss);
  if (const std::int64_t at = place_in_figures(graph, storage); at >= 0) return {memory.figures, at, bytes};
  switch (value.kind) {
    case ValueKind::input:
      return {memory.fields[static_cast<std::size_t>(storage)], micro_batch * aligned(bytes), bytes};
    case ValueKind::parameter: {
      const ParameterPlace& at = *memory.places[static_cast<std::size_t>(storage)];
      CHECK(states_[at.unit].working >= 0, value.name + " is read before it is gathered");
      return {states_[at.unit].working, at.offset * size_of(value.dtype()), bytes};
    }
    case ValueKind::gradient: {
      const ParameterPlace& at = *memory.places[static_cast<std::size_t>(value.parameter)];
      return {states_[at.unit].gradient, at.offset * size_of(value.dtype()), bytes};
    }
    case ValueKind::activation: {
      const BufferId held = memory.held(storage, micro_batch, chunk);
      CHECK(held >= 0, "value " + value.name + " is read before it is computed");
      return {held, 0, bytes};
    }
    case ValueKind::state:
      return whole(memory.fields[static_cast<std::size_t>(storage)]);
    case ValueKind::scalar:
      break;
  }
  CHECK(false, "value " + value.name + " has no place");
  return {};
}

void Emitter::transfer(GraphMemory& memory, const std::vector<Transfer>& transfers) {
  if (transfers.empty()) return;
  const CutGraph& cut = *memory.cut;
  Exchange exchange;
  std::string text;
  const auto add = [&](const Transfer& one, int micro_batch) {
    const Boundary& boundary = cut.boundaries[static_cast<std::size_t>(one.boundary)];
    const int here = one.send == one.backward ? one.boundary + 1 : one.boundary;
    for (ValueId id : one.backward ? boundary.gradients : boundary.activations) {
      const std::int64_t bytes = memory.graph->local(id).bytes();
      BufferId& held = memory.held(id, micro_batch, here);
      if (!one.send) held = buffer(value_name(memory, id), Category::activations, bytes, micro_batch, here);
      const Region region{held, 0, bytes};
      const Carried carried{one.boundary, one.backward, micro_batch, id};
      if (one.send)
        exchange.sends.push_back({Axis::pipeline, one.peer - stage_, {region}, carried});
      else
        exchange.receives.push_back({Axis::pipeline, one.peer - stage_, {region}, carried});
    }
    text += fmt::format("{}{}.{}", text.empty() ? "" : "+", one.backward ? "gradients" : "activations", one.boundary);
    if (cut.rounds == nullptr) text += fmt::format(".mb{}", micro_batch);
  };
  for (const Transfer& one : transfers)
    for (int i = 0; i < cut.together; ++i) add(one, cut.first_of(one.micro_batch) + i);
  if (exchange.sends.empty() && exchange.receives.empty()) return;
  exchange.name = name(text);
  const Because passing = because({.phase = Provenance::Phase::transfer});
  issue(Stream::communication, std::move(exchange));
}

void Emitter::share(GraphMemory& memory, int micro_batch, int from, int to, const std::vector<ValueId>& values) {
  for (ValueId id : values) memory.held(id, micro_batch, to) = memory.held(id, micro_batch, from);
}

BufferId Emitter::output_buffer(GraphMemory& memory, NodeId id, int output, int micro_batch) {
  const Graph& graph = *memory.graph;
  const Node& node = graph.nodes[static_cast<std::size_t>(id)];
  const ValueId made = node.outputs[static_cast<std::size_t>(output)];
  const std::int64_t bytes = graph.local(made).bytes();
  for (const auto& [in, out] : definition(node.op).in_place) {
    if (out != output || in >= static_cast<int>(node.inputs.size())) continue;
    const ValueId source = graph.storage(node.inputs[static_cast<std::size_t>(in)]);
    const Value& from = graph.value(source);
    if (from.kind != ValueKind::activation || graph.loss.sums_up(source)) continue;
    if (memory.cut->last_use[static_cast<std::size_t>(source)] != memory.cut->position[static_cast<std::size_t>(id)])
      continue;
    const BufferId shared = memory.held(source, micro_batch, node.chunk);
    if (graph.local(source).bytes() != bytes || shared < 0) continue;
    const bool taken = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId other) {
      return graph.value(other).kind == ValueKind::activation && !graph.loss.sums_up(other) &&
             memory.held(other, micro_batch, node.chunk) == shared;
    });
    if (!taken) return shared;
  }
  return buffer(value_name(memory, made), Category::activations, bytes, micro_batch, node.chunk);
}

// Whether the node's gradients are added to what is there. Where only some are there yet, the others start from zero.
bool Emitter::prepare_gradients(const GraphMemory& memory, const Node& node) {
  const Graph& graph = *memory.graph;
  std::vector<ValueId> fresh;
  bool some = false;
  for (ValueId output : node.outputs) {
    const Value& value = graph.value(output);
    if (value.kind != ValueKind::gradient) continue;
    const ParameterPlace& at = *memory.places[static_cast<std::size_t>(value.parameter)];
    gradient(role_.units[at.unit]);
    if (first_gradient(at))
      fresh.push_back(output);
    else
      some = true;
  }
  if (!some) return false;
  for (ValueId output : fresh) zero(node.name, region(memory, output, 0, 0));
  return true;
}

// The node's own, and for random ops the elements of the whole batch before this micro-batch's first.
Affine Emitter::origin(const Graph& graph, const Node& node, int micro_batch) const {
  Affine origin = origin_of(graph, node);
  if (!has(node.op, Trait::random)) return origin;
  const Shape& shape = graph.value(node.outputs[0]).shape();
  const std::int64_t sample = shape.elements() / shape[0];
  origin.base = micro_batch * options_.micro_batch * sample;
  const Axes axes = options_.mesh.active(kBatchAxes);
  const Affine of_rank = origin_over(axes, options_.micro_batch * options_.micro_batches * sample, options_.mesh);
  for (Axis axis : axes) origin.along(axis) = of_rank.along(axis);
  return origin;
}

// A collective of the graph. A part of a dim that is not the first is a run of memory for each index of the dims before
// it.
void Emitter::collective_node(GraphMemory& memory, NodeId id, int micro_batch) {
  const Graph& graph = *memory.graph;
  const Node& node = graph.nodes[static_cast<std::size_t>(id)];
  const TensorDesc from = graph.local(node.inputs[0]), to = graph.local(node.outputs[0]);
  const Region input = region(memory, node.inputs[0], micro_batch, node.chunk);
  const BufferId held = output_buffer(memory, id, 0, micro_batch);
  memory.held(node.outputs[0], micro_batch, node.chunk) = held;
  const Region output{held, 0, to.bytes()};
  if (node.op == Op::all_reduce) {
    if (!(input == output)) copy(node.name, to.dtype, input, output);
    return all_reduce(node.name, to.dtype, node.axes, output);
  }
  if (node.op == Op::shift) return collective(node.name, CollectiveKind::shift, to.dtype, node.axes, input, output, -1);
  if (node.op == Op::all_to_all)
    return collective(node.name, CollectiveKind::all_to_all, to.dtype, node.axes, input, output,
                      static_cast<int>(integer(node, "dim")));
  const auto kind = node.op == Op::all_gather ? CollectiveKind::all_gather : CollectiveKind::reduce_scatter;
  const auto dim = static_cast<int>(integer(node, "dim"));
  std::int64_t runs = 1;
  for (int before = 0; before < dim; ++before) runs *= to.shape[before];
  for (std::int64_t run = 0; run < runs; ++run)
    collective(node.name, kind, to.dtype, node.axes,
               {input.buffer, input.offset + run * (from.bytes() / runs), from.bytes() / runs},
               {output.buffer, output.offset + run * (to.bytes() / runs), to.bytes() / runs}, std::max(0, dim));
}

const PreparedNode& Emitter::prepare(GraphMemory& memory, NodeId id) {
  PreparedNode& prepared = memory.prepared[static_cast<std::size_t>(id)];
  if (prepared.name >= 0) return prepared;
  const Graph& graph = *memory.graph;
  const Node& node = graph.nodes[static_cast<std::size_t>(id)];
  prepared.name = name(node.name);
  for (const OperandPlace& place : operand_places(signature_of(graph, node)))
    if (place.def->role == OperandDef::Role::update) prepared.updated.push_back(place.first);
  return prepared;
}

// Index in PreparedNode of the node's signature; `counts`: its kernel is told whether it adds.
std::size_t Emitter::prepare(GraphMemory& memory, NodeId id, bool counts, bool add) {
  PreparedNode& prepared = memory.prepared[static_cast<std::size_t>(id)];
  const std::size_t which = add ? 1 : 0;
  if (prepared.signatures[which] >= 0) return which;
  Signature signature = signature_of(*memory.graph, memory.graph->nodes[static_cast<std::size_t>(id)]);
  if (counts) signature.attributes.set("accumulate", add);
  prepared.signatures[which] = signature_index(signature);
  prepared.workspaces[which] = options_.target->workspace_bytes(signature);
  return which;
}

void Emitter::node(GraphMemory& memory, NodeId id, int micro_batch) {
  const Graph& graph = *memory.graph;
  const Node& node = graph.nodes[static_cast<std::size_t>(id)];
  if (graph.is_view(node)) return;  // the same memory in another shape
  Provenance of_node = why_;
  of_node.node = id;
  of_node.recomputed = node.recomputed;
  const Because running = because(of_node);
  if (is_collective(node.op)) return collective_node(memory, id, micro_batch);
  const PreparedNode& prepared = prepare(memory, id);
  std::vector<Operand> operands;
  operands.reserve(node.inputs.size() + node.outputs.size());
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId input = node.inputs[i];
    const bool parameter = graph.value(graph.storage(input)).kind == ValueKind::parameter;
    const Region at = parameter ? region(memory, input, 0, 0) : region(memory, input, micro_batch, node.chunk);
    if (std::ranges::find(prepared.updated, static_cast<int>(i)) != prepared.updated.end())
      operands.emplace_back(Update{at});
    else
      operands.emplace_back(Read{at});
  }
  const bool has_gradients = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id_out) {
    return graph.value(id_out).kind == ValueKind::gradient;
  });
  const bool counts =
      has_gradients || std::ranges::any_of(node.outputs, [&](ValueId made) { return graph.loss.sums_up(made); });
  const bool add = has_gradients ? prepare_gradients(memory, node) : counts && goes_on(memory, node);
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    const ValueId output = node.outputs[i];
    const Value& value = graph.value(output);
    const bool adds = add && (value.kind == ValueKind::gradient || graph.loss.sums_up(output));
    if (value.kind == ValueKind::activation && !graph.loss.sums_up(output))
      memory.held(output, micro_batch, node.chunk) = output_buffer(memory, id, static_cast<int>(i), micro_batch);
    const Region at = region(memory, output, micro_batch, node.chunk);
    if (adds)
      operands.emplace_back(Update{at});
    else
      operands.emplace_back(Write{at});
  }
  const std::size_t which = prepare(memory, id, counts, add);
  append_launch(prepared.name, prepared.signatures[which], prepared.workspaces[which], std::move(operands),
                origin(graph, node, micro_batch));
  if (memory.cut->rounds != nullptr)
    std::get<Launch>(role_.programs.back().instructions.back().instruction).origin_step =
        origin(graph, node, 1).base - origin(graph, node, 0).base;
}

}  // namespace trainer
