// From what the file says of a node to a node of the graph: shapes by the op's rule, parameters, casts, random keys.
#include "engine/core/glob.h"
#include "engine/core/random.h"
#include "engine/transform/reading.h"

namespace trainer {
namespace {

Parallel parallel_named(const std::string& name) {
  return name == "column" ? Parallel::column : name == "row" ? Parallel::row : Parallel::none;
}

/// No machine has so many, and sums of sizes stay far from 2^63.
void check_size(const Shape& shape) {
  double elements = 1;
  for (std::int64_t size : shape.sizes()) elements *= static_cast<double>(size);
  if (elements > 0x1p48) throw OpMistake{"a tensor of shape " + shape.str() + " is too large", ""};
}

void report(Mistakes& mistakes, const OpMistake& mistake, const yaml::Node& node, const std::string& name) {
  const yaml::Node* where = mistake.attribute.empty() ? node.find("input") : node.find(mistake.attribute);
  if (where == nullptr) where = node.find("op");
  mistakes.add(*where, mistake.attribute.empty() ? name : name + "." + mistake.attribute, mistake.message);
}

}  // namespace

void NodeMaker::make(const yaml::Node& file_node, const OpDef& def, const Attributes& given,
                     const std::optional<Init>& init, const std::vector<ValueId>& inputs, const Scope& scope,
                     Entry& entry) {
  try {
    const DType compute = compute_of(entry.name);
    std::vector<ValueId> data = inputs;
    Attributes completed = given;
    if (def.op == Op::experts) {
      const Node& router = router_of(data[1]);
      data.push_back(router.outputs[1]);
      completed.set("experts", reading_.graph.value(router.inputs[1]).shape()[0]);
    }
    if (def.op == Op::weigh && reading_.graph.value(data[1]).dtype() != DType::f32 &&
        is_floating(reading_.graph.value(data[1]).dtype()))
      data[1] = cast(data[1], DType::f32, scope.block);
    const bool is_random = has(def.op, Trait::random);
    const Inference inference = def.infer(completed, infer_inputs(def, data, compute), compute);
    if (def.op == Op::positions && given.has("documents")) {
      Attributes rows{{"rows", given.integer("rows")}, {"dim", given.integer("dim")}};
      const ValueId ids = document_positions(file_node, entry.name, data[1], given.integer("offset"), scope.block);
      return make(file_node, definition(Op::embedding), rows, init, {ids}, scope, entry);
    }
    for (const ParameterDef& parameter : inference.parameters) check_size(parameter.shape);
    for (const TensorDesc& output : inference.outputs) check_size(output.shape);
    if (is_random && (reading_.options.mode != BuildOptions::Mode::train || given.real("p") == 0)) {
      entry.value = data[0];
      return;
    }
    if (is_random) check_batch(data[0]);
    Node node{.name = entry.name, .op = def.op, .attributes = inference.attributes, .block = scope.block};
    node.origin = {file_node.file(), file_node.line, file_node.column};
    if (given.has("parallel")) node.parallel = parallel_named(given.text("parallel"));
    if (inference.reads_inputs)
      for (std::size_t i = 0; i < data.size(); ++i)
        node.inputs.push_back(needs_cast(def, data, i, compute) ? cast(data[i], compute, scope.block) : data[i]);
    if (!add_parameters(node, inference, given, file_node, init, scope, compute, entry)) return;
    if (is_random) add_randomness(node);
    add_states(node, inference);
    add_outputs(node, inference);
    if (inference.pieces.empty())
      entry.value = node.outputs[0];
    else
      entry.pieces = node.outputs;
    add(std::move(node));
  } catch (const OpMistake& mistake) {
    report(reading_.mistakes, mistake, file_node, entry.name);
  }
}

DType NodeMaker::compute_of(const std::string& node) const {
  for (const std::string& pattern : reading_.options.excluded)
    if (glob_matches(pattern, node)) return DType::f32;
  return reading_.options.compute;
}

/// The router whose weights are `value`.
const Node& NodeMaker::router_of(ValueId value) const {
  for (const Node& node : reading_.graph.nodes)
    if (node.op == Op::router && node.outputs[0] == value) return node;
  throw OpMistake{"the second input has to be a router", ""};
}

/// Floats of another dtype are read in the node's compute dtype, except for the target of a loss, and weights of
/// experts or rows, which are f32.
bool NodeMaker::needs_cast(const OpDef& def, const std::vector<ValueId>& data, std::size_t index, DType compute) const {
  const Value& value = reading_.graph.value(data[index]);
  return is_floating(value.dtype()) && value.dtype() != compute && !(def.loss && index > 0) &&
         !((def.op == Op::experts || def.op == Op::weigh) && index == 1);
}

std::vector<TensorDesc> NodeMaker::infer_inputs(const OpDef& def, const std::vector<ValueId>& data,
                                                DType compute) const {
  std::vector<TensorDesc> inputs;
  for (std::size_t i = 0; i < data.size(); ++i) {
    inputs.push_back(reading_.graph.value(data[i]).desc());
    if (needs_cast(def, data, i, compute)) inputs.back().dtype = compute;
  }
  return inputs;
}

/// The value in another dtype; one node for all that read it. A field is cast outside of blocks.
ValueId NodeMaker::cast(ValueId from, DType dtype, std::int32_t block) {
  const auto [at, fresh] = casts_.try_emplace({from, dtype}, kNone);
  if (!fresh) return at->second;
  Value value = reading_.graph.value(from);
  Node node{.name = value.name, .op = Op::cast, .inputs = {from}};
  if (value.kind != ValueKind::input) node.block = block;
  value.name += ".cast";
  value.kind = ValueKind::activation;
  value.alias_of = kNone;
  value.spec.format = dtype;
  at->second = reading_.graph.add_value(std::move(value));
  node.outputs = {at->second};
  add(std::move(node));
  return at->second;
}

/// Places in documents, as rows of a table from `offset` on; one node for all that read them so.
ValueId NodeMaker::document_positions(const yaml::Node& file_node, const std::string& reader, ValueId documents,
                                      std::int64_t offset, std::int32_t block) {
  const auto [at, fresh] = document_positions_.try_emplace({documents, offset}, kNone);
  if (!fresh) return at->second;
  Node node{.name = reader + ".ids", .op = Op::document_positions, .inputs = {documents}, .block = block};
  node.origin = {file_node.file(), file_node.line, file_node.column};
  if (offset > 0) node.attributes.set("offset", offset);
  at->second =
      reading_.graph.add_value({.name = node.name, .spec = {DType::i32, reading_.graph.value(documents).shape()}});
  node.outputs = {at->second};
  add(std::move(node));
  return at->second;
}

bool NodeMaker::add_parameters(Node& node, const Inference& inference, const Attributes& given,
                               const yaml::Node& file_node, const std::optional<Init>& init, const Scope& scope,
                               DType compute, Entry& entry) {
  const std::string shared = given.has("weight") ? given.text("weight") : "";
  if (init && (inference.parameters.empty() || !shared.empty())) {
    const std::string why = shared.empty() ? std::string(name_of(node.op)) + " has no parameters"
                                           : "the weight is that of " + shared + "; give its `init` there";
    reading_.mistakes.add(*file_node.find("init"), node.name + ".init", why);
    return false;
  }
  Graph& graph = reading_.graph;
  for (const ParameterDef& def : inference.parameters) {
    const bool weight = def.suffix == "weight" || def.suffix.empty(),
               initial = weight || def.suffix.ends_with(".weight");
    ValueId id = kNone;
    if (weight && !shared.empty()) {
      id = tied_weight(shared, def, file_node, scope, node.name + ".weight", compute);
      if (id == kNone) return false;
    } else {
      id = graph.add_value({.name = def.suffix.empty() ? node.name : node.name + "." + def.suffix,
                            .spec = {compute, def.shape},
                            .kind = ValueKind::parameter});
      if (weight && init && init->sinusoids && (def.shape.rank() != 2 || def.shape[1] % 2 != 0)) {
        reading_.mistakes.add(*file_node.find("init"), node.name + ".init",
                              "sinusoids are a matrix with an even number of columns, not " + def.shape.str());
        return false;
      }
      const bool fixed = given.has("trained") && !given.flag("trained");
      graph.parameters.push_back(
          {.value = id, .init = initial && init ? *init : def.init, .trainable = !fixed, .fixed = fixed});
    }
    if (weight) entry.weight = id;
    node.inputs.push_back(id);
  }
  return true;
}

/// The parameter of the node called `name`, if it has one of that shape.
ValueId NodeMaker::tied_weight(const std::string& name, const ParameterDef& def, const yaml::Node& file_node,
                               const Scope& scope, const std::string& path, DType compute) {
  const yaml::Node& where = *file_node.find("weight");
  const EntryId owner = reading_.names.look_up(name, where, path, scope);
  if (owner == kNone || reading_.names[owner].value == kNone) return kNone;
  const ValueId weight = reading_.names[owner].weight;
  if (weight == kNone) {
    reading_.mistakes.add(where, path, "\"" + name + "\" has no weight");
    return kNone;
  }
  const Shape& shape = reading_.graph.value(weight).shape();
  if (reading_.graph.value(weight).dtype() != compute) {
    reading_.mistakes.add(
        where, path,
        "one of this node and \"" + name + "\" is excluded from mixed precision; a shared weight has one dtype");
    return kNone;
  }
  if (shape == def.shape) return weight;
  reading_.mistakes.add(
      where, path,
      "the weight of \"" + name + "\" has shape " + shape.str() + "; here " + def.shape.str() + " is needed");
  return kNone;
}

void NodeMaker::add_states(Node& node, const Inference& inference) {
  Graph& graph = reading_.graph;
  for (const ParameterDef& def : inference.states) {
    const ValueId id = graph.add_value(
        {.name = node.name + "." + def.suffix, .spec = {DType::f32, def.shape}, .kind = ValueKind::state});
    graph.states.push_back({id, def.init.constant});
    node.inputs.push_back(id);
  }
}

void NodeMaker::add_outputs(Node& node, const Inference& inference) {
  for (std::size_t i = 0; i < inference.outputs.size(); ++i) {
    const TensorDesc& output = inference.outputs[i];
    Value value{.name = node.name, .spec = {output.dtype, output.shape}};
    if (!inference.pieces.empty())
      value.name += "." + inference.pieces[i];
    else if (i > 0)
      value.name += "." + inference.saved_names[i - 1];
    else if (node.op == Op::parameter)
      value.name += ".value";
    if (inference.alias) value.alias_of = reading_.graph.storage(node.inputs[0]);
    node.outputs.push_back(reading_.graph.add_value(std::move(value)));
  }
}

void NodeMaker::add_randomness(Node& node) {
  Graph& graph = reading_.graph;
  if (graph.step == kNone)
    graph.step = graph.add_value({.name = "step", .spec = {DType::i32, {1}}, .kind = ValueKind::scalar});
  node.inputs.push_back(graph.step);
  node.attributes.set("key", static_cast<std::int64_t>(random_key(reading_.options.seed, node.name)));
}

/// Masks are numbered by samples, so dim 0 must be the samples of the batch.
void NodeMaker::check_batch(ValueId input) const {
  const Value& value = reading_.graph.value(input);
  const bool batched = value.kind == ValueKind::input || batched_[static_cast<std::size_t>(input)];
  if (!batched || value.shape()[0] != reading_.options.batch)
    throw OpMistake{"takes values whose first dim is the batch, not " + value.shape().str(), ""};
}

void NodeMaker::add(Node node) {
  batched_.resize(reading_.graph.values.size(), false);
  bool batched = false;
  for (ValueId input : node.inputs)
    batched =
        batched || reading_.graph.value(input).kind == ValueKind::input || batched_[static_cast<std::size_t>(input)];
  for (ValueId output : node.outputs) batched_[static_cast<std::size_t>(output)] = batched;
  reading_.graph.nodes.push_back(std::move(node));
}

}  // namespace trainer
