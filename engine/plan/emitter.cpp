// How values become regions and nodes become launches.
#include "engine/plan/emitter.h"

#include <algorithm>

#include "engine/core/check.h"
#include "engine/ops/op_def.h"

namespace trainer {
namespace {

// Tensors of a unit start at multiples of this many elements: 64 bytes even in 16 bits.
constexpr std::int64_t kTensorAlignment = 32;

std::int64_t aligned(std::int64_t elements) { return (elements + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment; }

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) { return (hash ^ value) * 0x9E3779B97F4A7C15u + (hash >> 29); }

std::uint64_t hash_of(const Signature& signature) {
  std::uint64_t hash = static_cast<std::uint64_t>(signature.op);
  for (const auto& [name, value] : signature.attributes.items()) {
    hash = mix(hash, std::hash<std::string>{}(name));
    hash = mix(hash, std::hash<Attribute>{}(value));
  }
  for (const TensorDesc& tensor : signature.operands) {
    hash = mix(hash, static_cast<std::uint64_t>(tensor.dtype) * 8 + static_cast<std::uint64_t>(tensor.layout));
    for (std::int64_t size : tensor.shape.sizes()) hash = mix(hash, static_cast<std::uint64_t>(size));
  }
  return hash;
}

bool accumulates(Op op) {
  switch (op) {
    case Op::cross_entropy:
    case Op::mse:
    case Op::cross_entropy_count:
    case Op::mse_count:
    case Op::correct_count:
    case Op::cross_entropy_gathered:
    case Op::correct_count_gathered:
      return true;
    default:
      return false;
  }
}

}  // namespace

NameId Emitter::name(const std::string& text) {
  const auto [at, added] = names_.try_emplace(text, static_cast<NameId>(role_.names.size()));
  if (added) role_.names.push_back(text);
  return at->second;
}

BufferId Emitter::buffer(const std::string& text, Category category, std::int64_t bytes, std::int32_t micro_batch) {
  role_.buffers.push_back({name(text), micro_batch, category, static_cast<std::int32_t>(role_.programs.size()) - 1, bytes, -1});
  return static_cast<BufferId>(role_.buffers.size() - 1);
}

BufferId Emitter::persistent(const std::string& text, Category category, std::int64_t bytes) {
  role_.buffers.push_back({name(text), -1, category, -1, bytes, -1});
  return static_cast<BufferId>(role_.buffers.size() - 1);
}

std::int32_t Emitter::field(const std::string& text, std::int64_t bytes) {
  for (std::size_t i = 0; i < role_.fields.size(); ++i)
    if (role_.fields[i].name == text) {
      role_.fields[i].bytes = std::max(role_.fields[i].bytes, bytes);
      return static_cast<std::int32_t>(i);
    }
  role_.fields.push_back({text, bytes});
  return static_cast<std::int32_t>(role_.fields.size() - 1);
}

void Emitter::begin_program(const std::string& text) {
  role_.programs.push_back({text, {}});
  written_.clear();
  gaps_zeroed_.clear();
}

void Emitter::issue(Stream stream, Instruction instruction) { role_.programs.back().instructions.push_back({stream, std::move(instruction), {-1, -1, -1}}); }

std::int32_t Emitter::signature_index(const Signature& signature) {
  const std::uint64_t hash = hash_of(signature);
  const auto [first, last] = signatures_.equal_range(hash);
  for (auto at = first; at != last; ++at)
    if (role_.signatures[static_cast<std::size_t>(at->second)] == signature) return at->second;
  role_.signatures.push_back(signature);
  return signatures_.emplace(hash, static_cast<std::int32_t>(role_.signatures.size() - 1))->second;
}

void Emitter::launch(const std::string& text, const Signature& signature, std::vector<Operand> operands, std::int32_t micro_batch, const Affine& origin) {
  CHECK(operands.size() == signature.operands.size(), "a launch has the operands of its signature");
  Launch launch;
  launch.signature = signature_index(signature);
  launch.name = name(text);
  launch.micro_batch = micro_batch;
  launch.operands = std::move(operands);
  launch.origin = origin;
  const std::int64_t workspace = options_.target->workspace_bytes(signature);
  if (workspace > 0) launch.workspace.region = whole(buffer("workspace", Category::workspace, workspace, micro_batch));
  issue(Stream::compute, std::move(launch));
}

void Emitter::all_reduce(const std::string& text, DType dtype, Axes axes, const Region& region) {
  if (options_.mesh.group_size(axes) == 1) return;
  Collective collective;
  collective.kind = CollectiveKind::all_reduce;
  collective.dtype = dtype;
  collective.axes = axes;
  collective.name = name(text);
  collective.input.region = collective.output.region = region;
  issue(Stream::communication, collective);
}

// ---- Units -------------------------------------------------------------------------------------------------------

void Emitter::make_units(const Graph& graph) {
  std::unordered_map<std::string, const Parameter*> parameters;
  for (const Parameter& parameter : graph.parameters) parameters[graph.value(parameter.value).name] = &parameter;
  for (std::size_t index = 0; index < options_.units.size(); ++index) {
    Unit unit;
    unit.name = "unit." + std::to_string(index);
    for (const bool decays : {true, false}) {
      for (const std::string& text : options_.units[index]) {
        const auto found = parameters.find(text);
        CHECK(found != parameters.end(), "a unit names parameter " + text + ", which the graph lacks");
        const Value& value = graph.value(found->second->value);
        if ((options_.optimizer.decay_all || value.shape.rank() >= 2) != decays) continue;
        CHECK(places_.try_emplace(text, ParameterPlace{index, unit.elements, value.shape.elements()}).second, "two units hold " + text);
        unit.tensors.push_back({text, value.shape, unit.elements, found->second->init});
        unit.elements += aligned(value.shape.elements());
      }
      if (decays) unit.decay_elements = unit.elements;
    }
    const std::int64_t f32_bytes = unit.elements * size_of(DType::f32);
    unit.master = persistent(unit.name + ".master", Category::parameters, f32_bytes);
    unit.working = options_.compute == DType::f32 ? unit.master
                                                  : persistent(unit.name + ".working", Category::parameters, unit.elements * size_of(options_.compute));
    if (options_.train != nullptr)
      for (const std::string& state : options_.optimizer.state_names) {
        unit.states.push_back(persistent(unit.name + "." + state, Category::optimizer, f32_bytes));
        unit.state_names.push_back(state);
      }
    role_.units.push_back(std::move(unit));
  }
  CHECK(places_.size() == graph.parameters.size(), "every parameter belongs to a unit");
}

const ParameterPlace& Emitter::place(const std::string& parameter) const {
  const auto found = places_.find(parameter);
  CHECK(found != places_.end(), "no unit holds " + parameter);
  return found->second;
}

BufferId Emitter::packed(const Value& value, Layout layout) {
  const auto [at, added] = packed_index_.try_emplace({value.name, layout}, packed_.size());
  if (added) {
    TensorDesc desc = value.desc();
    desc.layout = layout;
    const BufferId id = persistent(value.name + "." + std::string(name_of(layout)), Category::workspace, options_.target->bytes(desc));
    packed_.push_back({value.name, layout, id, place(value.name).unit, value.desc()});
  }
  return packed_[at->second].buffer;
}

void Emitter::pack_unit(std::size_t unit) {
  for (const Packed& packed : packed_) {
    if (packed.unit != unit) continue;
    const ParameterPlace& at = place(packed.parameter);
    TensorDesc result = packed.plain;
    result.layout = packed.layout;
    const std::int64_t width = size_of(packed.plain.dtype);
    launch(packed.parameter, {Op::pack_weight, {}, {packed.plain, result}},
           {Read{{role_.units[unit].working, at.offset * width, at.elements * width}}, Write{whole(packed.buffer)}});
  }
}

// ---- Values of a graph -------------------------------------------------------------------------------------------

GraphMemory Emitter::enter(const Graph& graph, int micro_batches) {
  GraphMemory memory;
  memory.graph = &graph;
  memory.last_use.assign(graph.values.size(), -1);
  const auto num_nodes = static_cast<std::int32_t>(graph.nodes.size());
  for (std::int32_t id = 0; id < num_nodes; ++id)
    for (ValueId input : graph.nodes[static_cast<std::size_t>(id)].inputs) memory.last_use[static_cast<std::size_t>(graph.storage(input))] = id;
  for (ValueId kept : {graph.logits, graph.loss.scores})
    if (kept != kNone && graph.seed == kNone) memory.last_use[static_cast<std::size_t>(graph.storage(kept))] = num_nodes;
  memory.values.assign(static_cast<std::size_t>(micro_batches), std::vector<BufferId>(graph.values.size(), -1));

  memory.fields.assign(graph.values.size(), -1);
  for (ValueId input : graph.inputs) {
    const Value& value = graph.value(input);
    const std::int64_t bytes = value.desc().bytes() * micro_batches;
    const BufferId id = buffer(value.name, Category::inputs, bytes);
    memory.fields[static_cast<std::size_t>(input)] = id;
    issue(Stream::copy, CopyIn{field(value.name, bytes), 0, {whole(id)}});
  }
  if (graph.step != kNone) {
    memory.step = buffer("step", Category::inputs, size_of(DType::i32));
    issue(Stream::copy, CopyIn{field("step", size_of(DType::i32)), 0, {whole(memory.step)}});
  }
  if (graph.loss.sum != kNone) memory.loss = buffer("loss", Category::activations, size_of(DType::f64));
  return memory;
}

Region Emitter::region(const GraphMemory& memory, ValueId id, int micro_batch) const {
  const Graph& graph = *memory.graph;
  const ValueId storage = graph.storage(id);
  const Value& value = graph.value(storage);
  const std::int64_t bytes = graph.value(id).desc().bytes();
  if (storage == graph.seed) return whole(memory.seed);
  if (storage == graph.step) return whole(memory.step);
  if (storage == graph.loss.sum) return whole(memory.loss);
  switch (value.kind) {
    case ValueKind::input: return {memory.fields[static_cast<std::size_t>(storage)], micro_batch * bytes, bytes};
    case ValueKind::parameter: {
      const ParameterPlace& at = place(value.name);
      return {role_.units[at.unit].working, at.offset * size_of(value.dtype), bytes};
    }
    case ValueKind::gradient: {
      const ParameterPlace& at = place(graph.value(value.parameter).name);
      return {role_.units[at.unit].gradient, at.offset * size_of(value.dtype), bytes};
    }
    case ValueKind::activation: {
      const BufferId held = memory.values[static_cast<std::size_t>(micro_batch)][static_cast<std::size_t>(storage)];
      CHECK(held >= 0, "value " + value.name + " is read before it is computed");
      return {held, 0, bytes};
    }
    case ValueKind::scalar: break;
  }
  CHECK(false, "value " + value.name + " has no place");
  return {};
}

// A parameter operand: the working copy, or its packed form where the kernel wants one.
Region Emitter::weight(const GraphMemory& memory, ValueId id, Signature& signature, int operand) {
  const Value& value = memory.graph->value(id);
  const Layout layout = options_.target->preferred_layout(signature, operand);
  if (layout == Layout::row_major) return region(memory, id, 0);
  signature.operands[static_cast<std::size_t>(operand)].layout = layout;
  return whole(packed(value, layout));
}

BufferId Emitter::output_buffer(GraphMemory& memory, NodeId id, int output, int micro_batch) {
  const Graph& graph = *memory.graph;
  const Node& node = graph.nodes[static_cast<std::size_t>(id)];
  const Value& value = graph.value(node.outputs[static_cast<std::size_t>(output)]);
  std::vector<BufferId>& held = memory.values[static_cast<std::size_t>(micro_batch)];
  for (const auto& [in, out] : definition(node.op).in_place) {
    if (out != output || in >= static_cast<int>(node.inputs.size())) continue;
    const ValueId source = graph.storage(node.inputs[static_cast<std::size_t>(in)]);
    const Value& from = graph.value(source);
    if (from.kind != ValueKind::activation || source == graph.loss.sum || memory.last_use[static_cast<std::size_t>(source)] != id) continue;
    if (from.desc().bytes() != value.desc().bytes() || held[static_cast<std::size_t>(source)] < 0) continue;
    const BufferId shared = held[static_cast<std::size_t>(source)];
    const bool taken = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId other) {
      return graph.value(other).kind == ValueKind::activation && held[static_cast<std::size_t>(other)] == shared;
    });
    if (!taken) return shared;
  }
  return buffer(value.name, Category::activations, value.desc().bytes(), micro_batch);
}

void Emitter::zero(const std::string& text, const Region& region) {
  launch(text, {Op::zero, {}, {TensorDesc{DType::u8, Shape{region.bytes}, Layout::row_major}}}, {Write{region}});
}

// Padding of a gradient buffer must not reach the norm, nor other ranks.
void Emitter::zero_gaps(const Unit& unit) {
  if (!gaps_zeroed_.insert(unit.name).second) return;
  const std::int64_t width = size_of(options_.reduce);
  for (const UnitTensor& tensor : unit.tensors) {
    const std::int64_t end = tensor.offset + tensor.shape.elements(), next = tensor.offset + aligned(tensor.shape.elements());
    if (end < next) zero(unit.name + ".padding", {unit.gradient, end * width, (next - end) * width});
  }
}

// Whether the node's gradients are added to what is there. Where only some are there yet, the others start from zero.
bool Emitter::prepare_gradients(const GraphMemory& memory, const Node& node) {
  const Graph& graph = *memory.graph;
  std::vector<ValueId> fresh;
  bool some = false;
  for (ValueId output : node.outputs) {
    const Value& value = graph.value(output);
    if (value.kind != ValueKind::gradient) continue;
    zero_gaps(role_.units[place(graph.value(value.parameter).name).unit]);
    if (written_.insert(graph.value(value.parameter).name).second) fresh.push_back(output);
    else some = true;
  }
  if (!some) return false;
  for (ValueId output : fresh) zero(node.name, region(memory, output, 0));
  return true;
}

// In elements of the whole batch (kernels/dropout.h).
Affine Emitter::origin(const Graph& graph, const Node& node, int micro_batch) const {
  Affine origin;
  if (node.op != Op::dropout) return origin;
  const Shape& shape = graph.value(node.outputs[0]).shape;
  const std::int64_t sample = node.attributes.integer("sample", shape.elements() / shape[0]);
  const std::int64_t per_rank = options_.micro_batch * options_.micro_batches * sample;
  origin.base = micro_batch * options_.micro_batch * sample;
  if (options_.mesh.size(Axis::replicate) > 1) origin.per[static_cast<std::size_t>(Axis::replicate)] = per_rank * options_.mesh.size(Axis::shard);
  if (options_.mesh.size(Axis::shard) > 1) origin.per[static_cast<std::size_t>(Axis::shard)] = per_rank;
  return origin;
}

void Emitter::node(GraphMemory& memory, NodeId id, int micro_batch) {
  const Graph& graph = *memory.graph;
  const Node& node = graph.nodes[static_cast<std::size_t>(id)];
  if (graph.value(node.outputs[0]).alias_of != kNone) return;  // the same memory in another shape
  Signature signature = signature_of(graph, node);
  std::vector<Operand> operands;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId input = node.inputs[i];
    const bool parameter = graph.value(graph.storage(input)).kind == ValueKind::parameter;
    operands.emplace_back(Read{parameter ? weight(memory, input, signature, static_cast<int>(i)) : region(memory, input, micro_batch)});
  }
  const bool has_gradients = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id_out) { return graph.value(id_out).kind == ValueKind::gradient; });
  bool add = false;
  if (has_gradients) {
    add = prepare_gradients(memory, node);
    signature.attributes.set("accumulate", add);
  } else if (accumulates(node.op)) {
    add = micro_batch > 0;
    signature.attributes.set("accumulate", add);
  }
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    const ValueId output = node.outputs[i];
    const Value& value = graph.value(output);
    const bool adds = add && (value.kind == ValueKind::gradient || output == graph.loss.sum);
    if (value.kind == ValueKind::activation && output != graph.loss.sum)
      memory.values[static_cast<std::size_t>(micro_batch)][static_cast<std::size_t>(output)] = output_buffer(memory, id, static_cast<int>(i), micro_batch);
    const Region at = region(memory, output, micro_batch);
    if (adds) operands.emplace_back(Update{at});
    else operands.emplace_back(Write{at});
  }
  launch(node.name, signature, std::move(operands), micro_batch, origin(graph, node, micro_batch));
}

}  // namespace trainer
