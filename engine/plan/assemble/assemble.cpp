// The heart of the planner: what a step is, in the order it is issued.
#include "engine/plan/assemble/assemble.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>

#include "engine/core/check.h"
#include "engine/core/parallel.h"
#include "engine/ops/router_states.h"
#include "engine/plan/assemble/balance.h"
#include "engine/plan/assemble/emitted_step.h"
#include "engine/plan/assemble/emitter.h"
#include "engine/plan/assemble/fold.h"
#include "engine/plan/assemble/loop_costs.h"
#include "engine/plan/assemble/passes.h"
#include "engine/plan/assemble/units.h"
#include "engine/plan/memory.h"
#include "engine/plan/verify/stream_clocks.h"
#include "engine/plan/verify/verify.h"

namespace trainer {
namespace {

const TensorDesc kScalars = flat(DType::f32, 4);

using For = Provenance::Phase;

// Each chunk forward once: what an evaluation does.
Schedule forward_only(const Schedule& schedule) {
  Schedule result{schedule.stage_of_chunk, std::vector<std::vector<Action>>(schedule.stages.size())};
  for (std::size_t chunk = 0; chunk < schedule.stage_of_chunk.size(); ++chunk)
    result.stages[static_cast<std::size_t>(schedule.stage_of_chunk[chunk])].push_back(
        {Action::Kind::forward, 0, static_cast<int>(chunk)});
  return result;
}

// What the roles of a plan have in common, and the units of each.
struct Common {
  std::optional<CutGraph> train, evaluate, sample, prompt;
  std::vector<std::vector<Unit>> units;
  std::map<std::string, int> parts;  // of trained units: the part that each is averaged with
};

// Strided, over the units of all stages, of which stages may share some.
std::map<std::string, int> parts_of(const std::vector<std::vector<Unit>>& units, int parts) {
  std::map<std::string, int> result;
  for (const std::vector<Unit>& stage : units)
    for (const Unit& unit : stage)
      if (unit.trained()) result.try_emplace(unit.name, static_cast<int>(std::ssize(result) % parts));
  return result;
}

Common common_of(const AssembleOptions& options, const Rounds* rounds) {
  Common common;
  if (options.train != nullptr)
    common.train = rounds != nullptr ? cut(*options.train, *rounds, options.micro_batches, options.together)
                                     : cut(*options.train, options.schedule, options.micro_batches, options.together);
  if (options.evaluate != nullptr) common.evaluate = cut(*options.evaluate, forward_only(options.schedule), 1);
  if (options.sample != nullptr) common.sample = cut(*options.sample, forward_only(options.schedule), 1);
  if (options.prompt != nullptr) common.prompt = cut(*options.prompt, forward_only(options.schedule), 1);
  const Graph& any = options.train != nullptr      ? *options.train
                     : options.evaluate != nullptr ? *options.evaluate
                                                   : *options.sample;
  common.units = layout_units(any, options);
  common.parts = parts_of(common.units, options.data->parts());
  return common;
}

class Assembly {
 public:
  Assembly(const AssembleOptions& options, const Common& common, int stage)
      : options_(options), common_(common), stage_(stage), emit_(role_, options, stage) {}

  Role run() {
    emit_.make_units(common_.units[static_cast<std::size_t>(stage_)]);
    if (options_.prompt != nullptr) sample(ProgramKind::prompt, *common_.prompt);
    if (options_.sample != nullptr) sample(ProgramKind::sample, *common_.sample);
    if (options_.train != nullptr) {
      role_.scalars = emit_.persistent("scalars", Category::optimizer, kScalars.bytes());
      role_.applied = emit_.persistent("applied", Category::optimizer, size_of(DType::i32));
      if (scales_dynamically())
        role_.good_steps = emit_.persistent("good_steps", Category::optimizer, size_of(DType::i32));
      step(ProgramKind::step);
      if (options_.data->delays()) step(ProgramKind::step_averaging);
    }
    if (options_.evaluate != nullptr) evaluate();
    if (options_.train != nullptr && options_.data->averages()) {
      const int parts = options_.data->parts();
      for (int part = 0; part < parts; ++part) bring_together(ProgramKind::average, &DataStrategy::average, part);
      if (options_.data->delays()) bring_together(ProgramKind::settle, &DataStrategy::settle);
      if (parts > 1) bring_together(ProgramKind::swap, &DataStrategy::swap);
    }
    refresh();  // last: it makes what the programs above turned out to read
    if (folded_.alike && common_.train && common_.train->rounds != nullptr) drop_unused_buffers(role_);
    return std::move(role_);
  }

  /// What became of the programs with rounds, the worst of each.
  const Folded& folded() const { return folded_; }

 private:
  void step(ProgramKind kind) {
    emit_.begin_program(kind);
    const auto loading = emit_.because({.phase = For::load});
    EmittedStep step(emit_, role_, options_);
    if (kind == ProgramKind::step_averaging)
      for (const Unit& unit : role_.units)
        if (unit.trained()) options_.data->background(unit, step);
    Passes passes(emit_, role_, options_, stage_, *common_.train, step);
    GraphMemory memory = emit_.enter(*common_.train);
    const Spec rates(DType::f32, Shape{static_cast<std::int64_t>(options_.optimizers.size())});
    step.lr = emit_.buffer("lr", Category::inputs, rates.whole.elements() * size_of(rates.dtype()));
    emit_.issue(Stream::copy, CopyIn{emit_.field("lr", Field::Kind::scalar, rates), 0, {emit_.whole(step.lr)}});

    // Ranks that train apart take the mean over their own targets.
    const bool apart = options_.data->averages();
    const BufferId count =
        count_targets(memory, apart ? (kTokenAxes - kBatchAxes) | Axis::pipeline : data_and_pipeline());
    if (reads_seed(memory)) {
      memory.seed = emit_.buffer("seed", Category::activations, size_of(DType::f32));
      emit_.launch("seed", {Op::loss_seed, {}, {scalar(DType::f64), kScalars, scalar(DType::f32)}},
                   {Read{emit_.whole(count)}, Read{emit_.whole(role_.scalars)}, Write{emit_.whole(memory.seed)}});
    }
    begin_routers(memory, count, apart);
    begin_counts(emit_, memory);
    if (apart)
      emit_.all_reduce("count", DType::f64, kBatchAxes, emit_.whole(count));  // of all ranks, for the loss that is told
    passes.run(memory);
    finish(memory, count, step);
    const Rounds* const rounds = common_.train->rounds;
    if (rounds == nullptr) return;
    const Folded one = fold(role_, role_.programs.size() - 1, passes.marks(), *rounds, emit_.successions());
    folded_ = {folded_.alike && one.alike, std::max(folded_.memory, one.memory),
               std::max(folded_.instructions, one.instructions)};
  }

  /// The value of a graph's state; kNone where it has none of that name.
  static ValueId state_named(const Graph& graph, std::string_view name) {
    for (const GraphState& state : graph.states)
      if (graph.value(state.value).name == name) return state.value;
    return kNone;
  }

  /// Its memory, where a node of this stage reads it.
  std::optional<Region> state_region(const GraphMemory& memory, std::string_view name) const {
    const ValueId id = state_named(*memory.graph, name);
    if (id == kNone || memory.fields[static_cast<std::size_t>(id)] < 0) return {};
    return emit_.whole(memory.fields[static_cast<std::size_t>(id)]);
  }

  // Losses of routers are means over the samples of a step, known beforehand.
  void begin_routers(const GraphMemory& memory, BufferId count, bool apart) {
    if (const auto sums = state_region(memory, kRouterSums)) emit_.zero(std::string(kRouterSums), *sums);
    const auto seed = state_region(memory, kRouterSeed);
    if (!seed) return;
    const std::int64_t together = apart ? 1 : options_.mesh.group_size(kBatchAxes);
    const std::int64_t samples = options_.micro_batch * options_.micro_batches * together;
    emit_.launch(std::string(kRouterSeed),
                 {Op::loss_seed, {{"samples", samples}}, {scalar(DType::f64), kScalars, scalar(DType::f32)}},
                 {Read{emit_.whole(count)}, Read{emit_.whole(role_.scalars)}, Write{*seed}});
  }

  // What the log says of routers: of all ranks and stages.
  void report_routers(const GraphMemory& memory) {
    const ValueId state = state_named(*memory.graph, kRouterSums);
    if (state == kNone) return;
    const Spec sums(DType::f64, Shape{2});
    const Region all = emit_.whole(emit_.buffer("routers", Category::activations, 2 * size_of(DType::f64)));
    if (const auto own = state_region(memory, kRouterSums))
      emit_.copy("routers", DType::f64, *own, all);
    else
      emit_.zero("routers", all);
    emit_.all_reduce("routers", DType::f64, data_and_pipeline() | memory.graph->value(state).spec.partial, all);
    emit_.issue(Stream::copy, CopyOut{emit_.field("routers", Field::Kind::result, sums), 0, {all}});
  }

  bool has_loss(const GraphMemory& memory) const { return memory.cut->loss_stage == stage_; }

  /// Whether a gradient begins on this stage: that of the loss, or of an auxiliary one.
  bool reads_seed(const GraphMemory& memory) const {
    const Graph& graph = *memory.graph;
    return graph.seed != kNone && std::ranges::any_of(graph.nodes, [&](const Node& node) {
             return std::ranges::find(node.inputs, graph.seed) != node.inputs.end() &&
                    memory.cut->stage_of(node.chunk) == stage_;
           });
  }

  static Axes data_and_pipeline() { return kTokenAxes | Axis::pipeline; }

  // The number of targets that count, over all micro-batches and the ranks along `axes`: known before the first forward
  // pass. All stages have it.
  BufferId count_targets(const GraphMemory& memory, Axes axes) {
    const Graph& graph = *memory.graph;
    const Loss& loss = graph.loss;
    CHECK(graph.value(loss.targets).kind == ValueKind::input, "a loss counts what the batch alone decides");
    const BufferId count = emit_.buffer("count", Category::activations, size_of(DType::f64));
    if (has_loss(memory)) {
      launch_count(memory, count);
    } else {
      emit_.zero("count", emit_.whole(count));
    }
    emit_.all_reduce("count", DType::f64, axes, emit_.whole(count));
    return count;
  }

  // All micro-batches at once where they lie one after the other, else one by one.
  void launch_count(const GraphMemory& memory, BufferId count) {
    const Loss& loss = memory.graph->loss;
    TensorDesc targets = memory.graph->local(loss.targets);
    const Region field = emit_.whole(memory.fields[static_cast<std::size_t>(loss.targets)]), sum = emit_.whole(count);
    const int micro_batches = memory.cut->micro_batches;
    const bool together = field.bytes == micro_batches * targets.bytes();
    if (together) targets.shape[0] *= micro_batches;
    for (int i = 0; i < (together ? 1 : micro_batches); ++i) {
      Signature signature{loss.count_op, loss.count_attributes, {targets, scalar(DType::f64)}};
      signature.attributes.set("accumulate", i > 0);
      const Region part = together ? field : emit_.region(memory, loss.targets, i, 0);
      emit_.launch("count", signature, {Read{part}, i > 0 ? Operand(Update{sum}) : Operand(Write{sum})});
    }
  }

  /// A sum to which no node of this stage adds.
  void zero_unless_begun(const GraphMemory& memory, ValueId sum, const char* name) {
    if (std::ranges::find(memory.begun, sum) == memory.begun.end()) emit_.zero(name, emit_.region(memory, sum, 0, 0));
  }

  void reduce_loss(const GraphMemory& memory) {
    const auto why = emit_.because({.phase = For::report});
    zero_unless_begun(memory, memory.graph->loss.sum, "loss");
    emit_.all_reduce("loss", DType::f64, data_and_pipeline(), emit_.whole(memory.loss));
    if (memory.figures < 0) return;
    for (const ValueId figure : memory.graph->loss.figures) zero_unless_begun(memory, figure, "figures");
    emit_.all_reduce("figures", DType::f64, data_and_pipeline(), emit_.whole(memory.figures));
  }

  void tell_figures(const GraphMemory& memory) {
    if (memory.figures < 0) return;
    const Shape sums{static_cast<std::int64_t>(memory.graph->loss.figure_names.size()) + 1};
    const std::int32_t field = emit_.field("figures", Field::Kind::result, Spec(DType::f64, sums));
    emit_.issue(Stream::copy, CopyOut{field, 0, {emit_.whole(memory.figures)}});
  }

  void finish(const GraphMemory& memory, BufferId count, EmittedStep& step) {
    reduce_loss(memory);
    {
      const auto why = emit_.because({.phase = For::update});
      step.fetch_ahead();
    }
    step.finish_gradients();
    step.sum_over_stages();
    const BufferId squares = step.sum_of_squares(stage_);
    update(squares, memory.loss, count, step);
    {
      const auto why = emit_.because({.phase = For::update});
      balance_experts(emit_, memory, role_);
    }
    const auto why = emit_.because({.phase = For::report});
    report_routers(memory);
    emit_.issue(Stream::copy, CopyOut{emit_.field("metrics", Field::Kind::result, Spec(kScalars.dtype, kScalars.shape)),
                                      0,
                                      {emit_.whole(role_.scalars)}});
    tell_figures(memory);
  }

  void update(BufferId squares, BufferId loss, BufferId count, EmittedStep& step) {
    const auto why = emit_.because({.phase = For::update});
    update_scalars(squares, loss, count);
    for (const Unit& unit : role_.units) {
      if (!unit.trained()) continue;
      options_.data->update(unit, step);
    }
  }

  bool scales_dynamically() const { return !options_.loss_scaling.items().empty(); }

  // What decides whether the step's update is made, and on every rank alike: all read the same sums.
  void update_scalars(BufferId squares, BufferId loss, BufferId count) {
    const TensorDesc sum = scalar(DType::f64);
    Signature signature{Op::update_scalars, options_.loss_scaling, {sum, sum, sum, kScalars, scalar(DType::i32)}};
    signature.attributes.set("clip_norm", options_.clip_norm);
    std::vector<Operand> operands{Read{emit_.whole(squares)}, Read{emit_.whole(loss)}, Read{emit_.whole(count)},
                                  Update{emit_.whole(role_.scalars)}, Update{emit_.whole(role_.applied)}};
    if (scales_dynamically()) {
      signature.attributes.set("dynamic", true);
      signature.operands.push_back(scalar(DType::i32));
      operands.emplace_back(Update{emit_.whole(role_.good_steps)});
    }
    emit_.launch("update", signature, std::move(operands));
  }

  void evaluate() {
    emit_.begin_program(ProgramKind::evaluate);
    const auto loading = emit_.because({.phase = For::load});
    EmittedStep step(emit_, role_, options_);
    Passes passes(emit_, role_, options_, stage_, *common_.evaluate, step);
    GraphMemory memory = emit_.enter(*common_.evaluate);
    passes.run(memory);
    const auto reporting = emit_.because({.phase = For::report});
    const Graph& graph = *options_.evaluate;
    const BufferId count = count_targets(memory, data_and_pipeline());
    reduce_loss(memory);
    const std::int32_t field = emit_.field("evaluation", Field::Kind::result, Spec(DType::f64, Shape{3}));
    emit_.issue(Stream::copy, CopyOut{field, 0, {emit_.whole(memory.loss)}});
    emit_.issue(Stream::copy, CopyOut{field, 8, {emit_.whole(count)}});
    tell_figures(memory);
    if (graph.loss.scores == kNone) return;
    const BufferId correct = emit_.buffer("correct", Category::activations, size_of(DType::f64));
    if (has_loss(memory)) {
      const int chunk = memory.cut->num_chunks() - 1;
      Signature signature{graph.loss.correct_op,
                          graph.loss.correct_attributes,
                          {graph.local(graph.loss.scores), graph.local(graph.loss.targets), scalar(DType::f64)}};
      signature.attributes.set("accumulate", false);
      emit_.launch("correct", signature,
                   {Read{emit_.region(memory, graph.loss.scores, 0, chunk)},
                    Read{emit_.region(memory, graph.loss.targets, 0, chunk)}, Write{emit_.whole(correct)}});
    } else {
      emit_.zero("correct", emit_.whole(correct));
    }
    emit_.all_reduce("correct", DType::f64, data_and_pipeline(), emit_.whole(correct));
    emit_.issue(Stream::copy, CopyOut{field, 16, {emit_.whole(correct)}});
  }

  void sample(ProgramKind kind, const CutGraph& cut) {
    emit_.begin_program(kind);
    const auto loading = emit_.because({.phase = For::load});
    EmittedStep step(emit_, role_, options_);
    Passes passes(emit_, role_, options_, stage_, cut, step);
    GraphMemory memory = emit_.enter(cut);
    passes.run(memory);
    const auto reporting = emit_.because({.phase = For::report});
    if (options_.schedule.stage_of_chunk.back() != stage_) return;
    const Graph& graph = *cut.graph;
    const Region logits = emit_.region(memory, graph.logits, 0, cut.num_chunks() - 1);
    emit_.issue(Stream::copy,
                CopyOut{emit_.field("logits", Field::Kind::batch, graph.value(graph.logits).spec), 0, {logits}});
  }

  // What ends a round of a strategy that lets ranks drift apart; kNone: for all parts.
  void bring_together(ProgramKind kind, void (DataStrategy::*how)(const Unit&, Step&) const, int part = kNone) {
    emit_.begin_program(kind);
    const auto why = emit_.because({.phase = For::average});
    EmittedStep step(emit_, role_, options_);
    std::vector<const Unit*> units;
    for (const Unit& unit : role_.units)
      if (unit.trained() && (part == kNone || common_.parts.at(unit.name) == part)) units.push_back(&unit);
    for (const Unit* unit : units) (options_.data->*how)(*unit, step);
    for (const Unit* unit : units) step.renew_working(*unit);
  }

  // Working copies from the masters.
  void refresh() {
    emit_.begin_program(ProgramKind::refresh);
    const auto why = emit_.because({.phase = For::update});
    EmittedStep step(emit_, role_, options_);
    for (const Unit& unit : role_.units) {
      if (options_.train != nullptr && unit.trained()) options_.data->begin(unit, step);
      step.renew_working(unit);
      if (unit.sharded() && unit.whole_working() >= 0) step.all_gather_working(unit, false);
    }
  }

  const AssembleOptions& options_;
  const Common& common_;
  const int stage_;
  Role role_;
  Emitter emit_;
  Folded folded_;
};

constexpr int kAllAlike = -1;

// Of stages that were put together: one whose rounds are not alike or whose loops are too costly, so that all are of no
// use (kAllAlike: there is none), and whether a draft has loops that are too costly.
struct Outcome {
  int useless = kAllAlike;
  bool costly = false;
};

// The roles of a plan, or of one with loops. `likely`: the stage to look at first. Costly loops are for drafts alone.
Outcome assemble_roles(const AssembleOptions& options, const Rounds* rounds, int likely, Plan& plan) {
  const bool draft = options.instead_of_list != nullptr;
  if (options.on_list) options.on_list(rounds != nullptr ? rounds->left : options.micro_batches);
  const Common common = common_of(options, rounds);
  plan.roles.assign(static_cast<std::size_t>(options.mesh.size(Axis::pipeline)), {});
  std::vector<Folded> folded(plan.roles.size());
  std::atomic<int> unlike = kAllAlike;
  const auto for_each_stage = [&](const auto& work) {
    for_each_index(plan.roles.size(), [&](std::size_t i) {
      const int index = static_cast<int>(i), stage = index == 0 ? likely : index <= likely ? index - 1 : index;
      if (unlike == kAllAlike && !work(stage, plan.roles[static_cast<std::size_t>(stage)])) unlike = stage;
    });
  };
  for_each_stage([&](int stage, Role& role) {
    Assembly assembly(options, common, stage);
    role = assembly.run();
    folded[static_cast<std::size_t>(stage)] = assembly.folded();
    return assembly.folded().alike;
  });
  const bool loops = rounds != nullptr && unlike == kAllAlike;
  const LoopCosts costs(folded);
  if (loops && !draft && !costs.is_long())
    if (const std::optional<int> stage = costs.too_costly(plan)) return {.useless = *stage};
  // Only the fullest stage is worth much care. What the others waste is less than it needs.
  std::vector<std::int64_t> least(plan.roles.size());
  std::vector<char> wasted(plan.roles.size());
  for_each_stage([&](int stage, Role& role) {
    const auto at = static_cast<std::size_t>(stage);
    wasted[at] = plan_memory(role, options.limit_bytes, Care::little);
    if (wasted[at]) least[at] = least_bytes(role);
    return true;
  });
  const std::int64_t most = *std::max_element(least.begin(), least.end());
  for_each_stage([&](int stage, Role& role) {
    if (wasted[static_cast<std::size_t>(stage)] && role.total_bytes > most) plan_memory(role, options.limit_bytes);
    return true;
  });
  const std::optional<int> costly = loops ? costs.too_costly(plan) : std::nullopt;
  if (costly && !draft) return {.useless = *costly};
  for_each_stage([&](int, Role& role) {
    derive_order(role, plan.mesh);
    return rounds == nullptr || (waits_alike(role) && std::ranges::all_of(role.programs, streams_settle));
  });
  return {unlike, costly.has_value()};
}

// Rounds settle only some way behind the warm-up, later where gathers run ahead.
constexpr int kMargins[] = {2, 4, 8};

bool has_several_loops(const Plan& plan) {
  return std::ranges::any_of(plan.roles, [](const Role& role) {
    return std::ranges::any_of(role.programs, [](const Program& program) { return program.loops.size() > 1; });
  });
}

// False where the schedule has no rounds, or those of some role are not alike. With several loops a stage may learn of
// others long after its warm-up, and only the proof tells whether passes have settled by then.
std::optional<Outcome> assemble_with_loop(const AssembleOptions& options, Plan& plan) {
  Outcome outcome{.useless = 0};  // with a smaller margin
  for (const int margin : kMargins) {
    const std::optional<Rounds> rounds = find_rounds(options.schedule, options.micro_batches, margin, options.together);
    if (!rounds) return {};  // nor with a larger margin
    outcome = assemble_roles(options, &*rounds, std::max(outcome.useless, 0), plan);
    if (outcome.useless == kAllAlike && (!has_several_loops(plan) || violations(plan).empty())) return outcome;
  }
  return {};
}

int fullest(const Plan& plan) {
  const auto most = std::ranges::max_element(plan.roles, {}, &Role::total_bytes);
  return static_cast<int>(most - plan.roles.begin());
}

// A loop's rings may need more memory than the same step as a list. Where only the list fits, it becomes the plan, if
// making it takes no more than some seconds. A draft, which may have costly loops, tells only what a list needs.
void list_if_only_that_fits(const AssembleOptions& options, bool costly, Plan& plan) {
  constexpr std::int64_t kMostListed = 1'000'000;  // nodes, of all micro-batches
  const int stage = fullest(plan);
  if (costly) return options.instead_of_list(least_bytes(options, {stage}));
  if (plan.roles[static_cast<std::size_t>(stage)].total_bytes <= options.limit_bytes) return;
  if (static_cast<std::int64_t>(options.train->nodes.size()) * options.micro_batches > kMostListed) return;
  const std::int64_t least = least_bytes(options, {stage});
  if (least > options.limit_bytes) return;
  if (options.instead_of_list) return options.instead_of_list(least);
  Plan list;
  list.mesh = plan.mesh;
  list.drifts = plan.drifts;
  assemble_roles(options, nullptr, stage, list);
  if (list.roles[static_cast<std::size_t>(fullest(list))].total_bytes <= options.limit_bytes) plan = std::move(list);
}

}  // namespace

Plan assemble(const AssembleOptions& options) {
  Plan plan;
  plan.mesh = options.mesh;
  plan.drifts = options.train != nullptr && options.data->averages();
  const bool may_loop = options.train != nullptr && options.loops;
  if (const std::optional<Outcome> outcome = may_loop ? assemble_with_loop(options, plan) : std::nullopt)
    list_if_only_that_fits(options, outcome->costly, plan);
  else
    assemble_roles(options, nullptr, 0, plan);
  if (options.proved && !has_several_loops(plan)) verify(plan);
  return plan;
}

std::int64_t least_bytes(const AssembleOptions& options, const std::vector<int>& stages) {
  AssembleOptions few = options;  // micro-batches that fill the pipeline: more need no less
  if (const auto rounds = find_rounds(options.schedule, options.micro_batches, kMargins[0], options.together)) {
    few.schedule = rounds->schedule;
    few.micro_batches = rounds->left;
  }
  if (few.on_list) few.on_list(few.micro_batches);
  const Common common = common_of(few, nullptr);
  std::int64_t most = 0;
  for (const int stage : stages) {
    most = std::max(most, least_bytes(Assembly(few, common, stage).run()));
    if (most > options.limit_bytes) break;
  }
  return most;
}

int shortest_list(const Schedule& schedule, int micro_batches) {
  const std::optional<Rounds> rounds = find_rounds(schedule, micro_batches, kMargins[0]);
  return rounds ? rounds->left : micro_batches;
}

}  // namespace trainer
