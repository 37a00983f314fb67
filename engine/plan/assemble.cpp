// The heart of the planner: what a step is, in the order it is issued.
#include "engine/plan/assemble.h"

#include <algorithm>

#include "engine/core/check.h"
#include "engine/plan/emitter.h"
#include "engine/plan/memory.h"
#include "engine/plan/verify.h"

namespace trainer {
namespace {

TensorDesc scalar(DType dtype) { return {dtype, Shape{1}, Layout::row_major}; }
TensorDesc flat(DType dtype, std::int64_t elements) { return {dtype, Shape{elements}, Layout::row_major}; }
const TensorDesc kScalars = flat(DType::f32, 4);

// The verbs of data strategies, over the emitter.
class EmittedStep final : public Step {
 public:
  EmittedStep(Emitter& emit, Role& role, const AssembleOptions& options) : emit_(emit), role_(role), options_(options) {}

  void all_reduce_gradient(const Unit& unit, Axes axes) override { emit_.all_reduce(unit.name, options_.reduce, axes, emit_.whole(unit.gradient)); }

  void optimizer(const Unit& unit) override {
    const OptimizerSpec& spec = options_.optimizer;
    const bool working = unit.working != unit.master;
    Signature signature{spec.op, spec.attributes, {flat(DType::f32, unit.elements), flat(options_.reduce, unit.elements)}};
    signature.attributes.set("decay_elements", unit.decay_elements);
    signature.attributes.set("working", working);
    std::vector<Operand> operands{Update{emit_.whole(unit.master)}, Read{emit_.whole(unit.gradient)}};
    for (BufferId state : unit.states) {
      signature.operands.push_back(flat(DType::f32, unit.elements));
      operands.emplace_back(Update{emit_.whole(state)});
    }
    signature.operands.insert(signature.operands.end(), {scalar(DType::f32), kScalars, scalar(DType::i32)});
    operands.insert(operands.end(), {Read{emit_.whole(lr)}, Read{emit_.whole(role_.scalars)}, Read{emit_.whole(role_.applied)}});
    if (working) {
      signature.operands.push_back(flat(options_.compute, unit.elements));
      operands.emplace_back(Update{emit_.whole(unit.working)});
    }
    emit_.launch(unit.name, signature, std::move(operands));
  }

  BufferId lr = -1;

 private:
  Emitter& emit_;
  Role& role_;
  const AssembleOptions& options_;
};

class Assembly {
 public:
  explicit Assembly(const AssembleOptions& options) : options_(options), emit_(role_, options) {}

  Role run() {
    const Graph& any = options_.train != nullptr ? *options_.train : options_.evaluate != nullptr ? *options_.evaluate : *options_.sample;
    emit_.make_units(any);
    if (options_.train != nullptr) {
      role_.scalars = emit_.persistent("scalars", Category::optimizer, kScalars.bytes());
      role_.applied = emit_.persistent("applied", Category::optimizer, size_of(DType::i32));
      step();
    }
    const std::size_t packed = emit_.num_packed();
    if (options_.evaluate != nullptr) evaluate();
    if (options_.sample != nullptr) sample();
    CHECK(options_.train == nullptr || packed == emit_.num_packed(), "a program reads a packed weight that the step does not renew");
    refresh();  // last: it makes what the programs above turned out to read
    return std::move(role_);
  }

 private:
  void step() {
    emit_.begin_program("step");
    for (Unit& unit : role_.units) unit.gradient = emit_.buffer(unit.name + ".gradient", Category::gradients, unit.elements * size_of(options_.reduce));
    GraphMemory memory = emit_.enter(*options_.train, options_.micro_batches);
    EmittedStep step(emit_, role_, options_);
    step.lr = emit_.buffer("lr", Category::inputs, size_of(DType::f32));
    emit_.issue(Stream::copy, CopyIn{emit_.field("lr", size_of(DType::f32)), 0, {emit_.whole(step.lr)}});

    const BufferId count = count_targets(memory);
    memory.seed = emit_.buffer("seed", Category::activations, size_of(DType::f32));
    emit_.launch("seed", {Op::loss_seed, {}, {scalar(DType::f64), kScalars, scalar(DType::f32)}},
                 {Read{emit_.whole(count)}, Read{emit_.whole(role_.scalars)}, Write{emit_.whole(memory.seed)}});

    const std::vector<NodeId> completes = last_gradient_nodes();
    for (const Action& action : options_.actions) {
      const Use use{action.micro_batch, action.micro_batch == 0, action.micro_batch + 1 == options_.micro_batches};
      for (NodeId id = 0; id < static_cast<NodeId>(options_.train->nodes.size()); ++id) {
        const Node& node = options_.train->nodes[static_cast<std::size_t>(id)];
        if (node.backward != (action.kind == Action::Kind::backward)) continue;
        emit_.node(memory, id, action.micro_batch);
        for (std::size_t unit = 0; unit < completes.size(); ++unit)
          if (completes[unit] == id) options_.data->gradient_ready(role_.units[unit], use, step);
      }
    }
    finish(memory, count, step);
  }

  // The number of targets that count, over all micro-batches and data ranks: known before the first forward pass.
  BufferId count_targets(const GraphMemory& memory) {
    const Graph& graph = *memory.graph;
    const Loss& loss = graph.loss;
    CHECK(graph.value(loss.targets).kind == ValueKind::input, "a loss counts what the batch alone decides");
    const BufferId field = memory.fields[static_cast<std::size_t>(loss.targets)];
    const BufferId count = emit_.buffer("count", Category::activations, size_of(DType::f64));
    TensorDesc targets = graph.value(loss.targets).desc();
    targets.shape[0] = emit_.whole(field).bytes / (targets.bytes() / targets.shape[0]);
    Signature signature{loss.count_op, loss.count_attributes, {targets, scalar(DType::f64)}};
    signature.attributes.set("accumulate", false);
    emit_.launch("count", signature, {Read{emit_.whole(field)}, Write{emit_.whole(count)}});
    emit_.all_reduce("count", DType::f64, data_axes(), emit_.whole(count));
    return count;
  }

  // Of each unit, the node after which all its gradients of a micro-batch are there.
  std::vector<NodeId> last_gradient_nodes() const {
    const Graph& graph = *options_.train;
    std::vector<NodeId> last(role_.units.size(), kNone);
    for (std::size_t id = 0; id < graph.nodes.size(); ++id)
      for (ValueId output : graph.nodes[id].outputs)
        if (graph.value(output).kind == ValueKind::gradient)
          last[emit_.place(graph.value(graph.value(output).parameter).name).unit] = static_cast<NodeId>(id);
    return last;
  }

  void finish(const GraphMemory& memory, BufferId count, EmittedStep& step) {
    emit_.all_reduce("loss", DType::f64, data_axes(), emit_.whole(memory.loss));
    const BufferId squares = emit_.buffer("norm", Category::activations, size_of(DType::f64));
    bool add = false;
    for (const Unit& unit : role_.units) {
      const Signature signature{Op::sum_squares, {{"accumulate", add}}, {flat(options_.reduce, unit.elements), scalar(DType::f64)}};
      const Operand target = add ? Operand(Update{emit_.whole(squares)}) : Operand(Write{emit_.whole(squares)});
      emit_.launch(unit.name, signature, {Read{emit_.whole(unit.gradient)}, target});
      add = true;
    }
    emit_.launch("update", {Op::update_scalars, {{"clip_norm", options_.clip_norm}}, {scalar(DType::f64), scalar(DType::f64), scalar(DType::f64), kScalars, scalar(DType::i32)}},
                 {Read{emit_.whole(squares)}, Read{emit_.whole(memory.loss)}, Read{emit_.whole(count)}, Update{emit_.whole(role_.scalars)}, Update{emit_.whole(role_.applied)}});
    for (std::size_t unit = 0; unit < role_.units.size(); ++unit) {
      options_.data->update(role_.units[unit], step);
      emit_.pack_unit(unit);
    }
    emit_.issue(Stream::copy, CopyOut{emit_.field("metrics", kScalars.bytes()), 0, {emit_.whole(role_.scalars)}});
  }

  void evaluate() {
    emit_.begin_program("evaluate");
    GraphMemory memory = emit_.enter(*options_.evaluate, 1);
    const Graph& graph = *options_.evaluate;
    for (NodeId id = 0; id < static_cast<NodeId>(graph.nodes.size()); ++id) emit_.node(memory, id, 0);
    const BufferId count = count_targets(memory);
    emit_.all_reduce("loss", DType::f64, data_axes(), emit_.whole(memory.loss));
    const std::int32_t field = emit_.field("evaluation", 3 * size_of(DType::f64));
    emit_.issue(Stream::copy, CopyOut{field, 0, {emit_.whole(memory.loss)}});
    emit_.issue(Stream::copy, CopyOut{field, 8, {emit_.whole(count)}});
    if (graph.loss.scores == kNone) return;
    const BufferId correct = emit_.buffer("correct", Category::activations, size_of(DType::f64));
    Signature signature{Op::correct_count, graph.loss.count_attributes, {graph.value(graph.loss.scores).desc(), graph.value(graph.loss.targets).desc(), scalar(DType::f64)}};
    signature.attributes.set("accumulate", false);
    emit_.launch("correct", signature,
                 {Read{emit_.region(memory, graph.loss.scores, 0)}, Read{emit_.region(memory, graph.loss.targets, 0)}, Write{emit_.whole(correct)}});
    emit_.all_reduce("correct", DType::f64, data_axes(), emit_.whole(correct));
    emit_.issue(Stream::copy, CopyOut{field, 16, {emit_.whole(correct)}});
  }

  void sample() {
    emit_.begin_program("sample");
    GraphMemory memory = emit_.enter(*options_.sample, 1);
    for (NodeId id = 0; id < static_cast<NodeId>(options_.sample->nodes.size()); ++id) emit_.node(memory, id, 0);
    const Region logits = emit_.region(memory, options_.sample->logits, 0);
    emit_.issue(Stream::copy, CopyOut{emit_.field("logits", logits.bytes), 0, {logits}});
  }

  // Working copies and packed weights from the masters.
  void refresh() {
    emit_.begin_program("refresh");
    for (std::size_t index = 0; index < role_.units.size(); ++index) {
      const Unit& unit = role_.units[index];
      if (unit.working != unit.master)
        emit_.launch(unit.name, {Op::cast, {}, {flat(DType::f32, unit.elements), flat(options_.compute, unit.elements)}},
                     {Read{emit_.whole(unit.master)}, Write{emit_.whole(unit.working)}});
      emit_.pack_unit(index);
    }
  }

  const AssembleOptions& options_;
  Role role_;
  Emitter emit_;
};

}  // namespace

Plan assemble(const AssembleOptions& options) {
  Plan plan;
  plan.mesh = options.mesh;
  plan.roles.push_back(Assembly(options).run());
  for (Role& role : plan.roles) {
    plan_memory(role);
    derive_order(role, plan.mesh.size(Axis::shard));
  }
  verify(plan);
  return plan;
}

}  // namespace trainer
