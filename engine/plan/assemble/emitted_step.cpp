// Each verb is some instructions, and what they leave behind is noted for the verbs that follow.
#include "engine/plan/assemble/emitted_step.h"

#include <algorithm>
#include <utility>

#include "engine/core/check.h"

namespace trainer {
namespace {

using For = Provenance::Phase;

}  // namespace

// A unit's reduction as a compression sees it: of its gradient, or of its outer gradient.
class UnitReduction final : public ReductionContext {
 public:
  UnitReduction(EmittedStep& step, const Unit& unit, Axes axes, bool sliced, DType reduce, const Region& gradient)
      : step_(step), unit_(unit), axes_(axes), sliced_(sliced), reduce_(reduce), gradient_(gradient) {}

  int ranks() const override { return step_.options_.mesh.group_size(axes_); }
  Region own_slice(const Region& whole) const override {
    return trainer::own_slice(whole, step_.options_.mesh.active(axes_), ranks());
  }
  DType reduce() const override { return reduce_; }
  bool sliced() const override { return sliced_; }
  Region gradient() override { return gradient_; }
  Region residual() override { return unit_.find(Slot::Kind::residual)->region; }
  Region packet(std::int64_t bytes) override {
    return step_.emit_.whole(step_.emit_.buffer(unit_.name + ".packet", Category::communication, bytes));
  }
  void run(Op op, const Attributes& attributes, const std::vector<std::pair<TensorDesc, Operand>>& operands) override {
    Signature signature{op, attributes, {}};
    std::vector<Operand> regions;
    for (const auto& [tensor, operand] : operands) {
      signature.operands.push_back(tensor);
      regions.push_back(operand);
    }
    step_.emit_.launch(unit_.name, signature, std::move(regions));
  }
  void collective(CollectiveKind kind, DType dtype, const Region& input, const Region& output) override {
    step_.emit_.collective(unit_.name, kind, dtype, axes_, input, output);
  }
  void later(std::function<void()> rest) override { step_.put_off(std::move(rest)); }

 private:
  EmittedStep& step_;
  const Unit& unit_;
  const Axes axes_;
  const bool sliced_;
  const DType reduce_;
  const Region gradient_;
};

EmittedStep::EmittedStep(Emitter& emit, Role& role, const AssembleOptions& options)
    : emit_(emit),
      role_(role),
      options_(options),
      reduced_(role.units.size()),
      staged_(emit, role, options, StagedUnits::For::update),
      masters_(emit, role, options, StagedUnits::For::renewal) {}
EmittedStep::~EmittedStep() = default;

// ---- Parameters --------------------------------------------------------------------------------------------------

void EmittedStep::all_gather_working(const Unit& unit, bool int8) {
  const auto why = emit_.because(For::gather, unit);
  const bool sliced = options_.mesh.group_size(unit.slice_axes()) > 1;
  if (unit.whole_working() >= 0) {  // in place, after an update
    if (sliced)
      emit_.collective(unit.name, CollectiveKind::all_gather, unit.compute, unit.slice_axes(), unit.updated_working(),
                       unit.working().region);
    return;
  }
  if (emit_.has_working(unit)) return;
  const auto secondary = secondary_.find(&unit);
  const Region from = secondary == secondary_.end() ? fetch_working(unit) : secondary->second;
  if (!sliced) return emit_.set_working(unit, from.buffer);
  const BufferId gathered =
      emit_.buffer(unit.name + ".gathered", Category::parameters, unit.elements * size_of(unit.compute));
  emit_.set_working(unit, gathered);
  if (int8 && unit.compute == options_.compute) return gather_codes(unit, from, gathered);
  gather(unit, unit.compute, from, emit_.whole(gathered));
}

// From the slices of all ranks, or of a replica's secondary copy once there is one.
void EmittedStep::gather(const Unit& unit, DType dtype, const Region& from, const Region& to) {
  const Axes axes = secondary_.contains(&unit) ? unit.slice_axes() - Axes::of(Axis::replicate) : unit.slice_axes();
  emit_.collective(unit.name, CollectiveKind::all_gather, dtype, axes, from, to);
}

// This rank's slice of the working copy, on the device.
Region EmittedStep::fetch_working(const Unit& unit) {
  const Region home = unit.working().region;
  if (role_.space_of(home) == Space::device) return home;
  const std::string text = unit.name + ".fetched";
  const Region here = emit_.whole(emit_.buffer(text, Category::parameters, home.bytes));
  emit_.issue(Stream::fetch, Move{emit_.name(text), {home}, {here}});
  return here;
}

// A copy of codes, where there are such: then each pass reads the same weights.
void EmittedStep::keep_secondary(const Unit& unit) {
  if (unit.whole_working() >= 0 || !emit_.has_working(unit) || secondary_.contains(&unit)) return;
  const Axes axes = options_.mesh.active(unit.slice_axes() - Axes::of(Axis::replicate));
  const int ranks = options_.mesh.group_size(axes);
  if (ranks == 1 || ranks == options_.mesh.group_size(unit.slice_axes())) return;
  const auto why = emit_.because(For::gather, unit);
  const auto codes = codes_.find(&unit);
  const bool coded = codes != codes_.end();
  const Region all = coded ? codes->second : emit_.whole(emit_.working(unit));
  const Region slice = own_slice(all, axes, ranks);
  const std::string text = unit.name + ".secondary";
  const Region kept = emit_.whole(emit_.buffer(text, Category::parameters, slice.bytes));
  emit_.copy(text, coded ? DType::u8 : unit.compute, slice, kept);
  secondary_[&unit] = kept;
}

void EmittedStep::release_working(const Unit& unit) {
  if (unit.whole_working() < 0) emit_.set_working(unit, -1);
}

// ---- Gradients ---------------------------------------------------------------------------------------------------

Region EmittedStep::gradient(const Unit& unit) {
  const Reduced& reduced = reduced_[index(unit)];
  return reduced.slice.buffer >= 0 ? reduced.slice : emit_.whole(emit_.gradient(unit));
}

// The unit's gradient is whole, and gradients that are sums along the axes of the graph are made whole.
void EmittedStep::sum_partial(const Unit& unit) {
  const auto why = emit_.because(For::reduce, unit);
  const std::int64_t width = size_of(options_.reduce);
  emit_.complete_gradient(unit);
  for (const UnitRun& run : runs_of(unit, options_.mesh))
    if (!run.partial.empty())
      emit_.all_reduce(unit.name + ".partial", options_.reduce, run.partial,
                       {emit_.gradient(unit), run.elements.first * width, run.elements.size() * width});
  reduced_[index(unit)].partial_summed = true;
}

// What is put off keeps its reason.
void EmittedStep::put_off(std::function<void()> rest) {
  later_.push_back([this, why = emit_.why(), rest = std::move(rest)] {
    const auto then = emit_.because(why);
    rest();
  });
}

// What was put off when the unit before was reduced: by now its collective has had time.
void EmittedStep::catch_up() {
  for (const auto& rest : std::exchange(later_, {})) rest();
}

void EmittedStep::finish_gradients() {
  while (!later_.empty()) catch_up();
}

void EmittedStep::compress(const Unit& unit, Axes axes, bool sliced, DType reduce, const Region& gradient) {
  reductions_.push_back(std::make_unique<UnitReduction>(*this, unit, axes, sliced, reduce, gradient));
  options_.compression->reduce(unit, *reductions_.back());
}

void EmittedStep::all_reduce_gradient(const Unit& unit, Axes over) {
  const auto why = emit_.because(For::reduce, unit);
  const Axes axes = over & unit.sum_axes();
  Reduced& reduced = reduced_[index(unit)];
  if (options_.mesh.group_size(axes) == 1) {  // what was put off goes on waiting
    if (!reduced.partial_summed) sum_partial(unit);
    return;
  }
  if (options_.compression != nullptr && !options_.data->averages()) {
    catch_up();
    if (!reduced.partial_summed) sum_partial(unit);
    return compress(unit, axes, false, options_.reduce, emit_.whole(emit_.gradient(unit)));
  }
  if (!reduced.partial_summed) sum_partial(unit);
  const auto sum = [this, name = unit.name, axes, region = gradient(unit)] {
    emit_.all_reduce(name, options_.reduce, axes, region);
  };
  later_.empty() ? sum() : put_off(sum);  // behind the unit's own slice, where that still waits for its collective
}

void EmittedStep::reduce_scatter_gradient(const Unit& unit, bool once, bool int8) {
  const auto why = emit_.because(For::reduce, unit);
  Reduced& reduced = reduced_[index(unit)];
  const Axes axes = unit.slice_axes();
  const int shards = options_.mesh.group_size(axes);
  catch_up();
  sum_partial(unit);
  if (shards == 1 && once) return;
  const Region all = emit_.whole(emit_.gradient(unit));
  const std::int64_t bytes = all.bytes / shards;
  if (once) {
    reduced.slice = own_slice(all, axes, shards);
    if (options_.compression != nullptr) return compress(unit, axes, true, options_.reduce, all);
    if (int8) return scatter_codes(unit, all, reduced.slice);
    emit_.collective(unit.name, CollectiveKind::reduce_scatter, options_.reduce, axes, all, reduced.slice);
    return;
  }
  const bool first = reduced.slice.buffer < 0;
  Region slice = all;
  if (shards > 1) {
    slice = emit_.whole(emit_.buffer(unit.name + ".gradient_slice", Category::gradients, bytes));
    if (int8)
      scatter_codes(unit, all, slice);
    else
      emit_.collective(unit.name, CollectiveKind::reduce_scatter, options_.reduce, axes, all, slice);
  }
  if (first) {
    reduced.slice = slice;
  } else {
    put_off([this, name = unit.name, sum = reduced.slice, slice] {
      const TensorDesc tensor = flat(options_.reduce, sum.bytes / size_of(options_.reduce));
      emit_.launch(name, {Op::add, {}, {tensor, tensor, tensor}}, {Read{sum}, Read{slice}, Write{sum}});
    });
  }
  emit_.drop_gradient(unit);
}

void EmittedStep::sum_over_stages() {
  std::vector<const Unit*> shared;
  for (const Unit& unit : role_.units)
    if (!unit.stages.empty() && unit.trained()) shared.push_back(&unit);
  std::sort(shared.begin(), shared.end(),
            [](const Unit* a, const Unit* b) { return a->name < b->name; });  // one order on all stages
  for (const Unit* unit : shared) {
    const auto why = emit_.because(For::reduce, *unit);
    if (!reduced_[index(*unit)].partial_summed) sum_partial(*unit);
    emit_.all_reduce(unit->name, options_.reduce, Axes::of(Axis::pipeline), gradient(*unit), unit->stages);
  }
}

// Of a gradient on the device, which is added to those of other units.
void EmittedStep::add_squares(const Unit& unit) {
  const Region region = gradient(unit);
  const auto sum = [&](const Attributes& extra) {
    const bool add = squares_ >= 0;
    if (!add) squares_ = emit_.buffer("norm", Category::activations, size_of(DType::f64));
    const auto why = emit_.because(For::norm, unit);
    const std::int64_t elements = region.bytes / size_of(options_.reduce);
    Signature signature{Op::sum_squares, extra, {flat(options_.reduce, elements), scalar(DType::f64)}};
    signature.attributes.set("accumulate", add);
    const Operand target = add ? Operand(Update{emit_.whole(squares_)}) : Operand(Write{emit_.whole(squares_)});
    emit_.launch(unit.name, signature, {Read{region}, target},
                 elements < unit.elements ? slice_origin(unit, elements, options_.mesh) : Affine{});
  };
  reduced_[index(unit)].squared = true;
  const std::vector<UnitRun> runs = runs_of(unit, options_.mesh);
  if (std::all_of(runs.begin(), runs.end(), [](const UnitRun& run) { return run.alike.empty(); })) return sum({});
  for (std::size_t first = 0, last = 0; first < runs.size(); first = last) {
    while (last < runs.size() && runs[last].alike == runs[first].alike) ++last;
    const double copies = options_.mesh.group_size(runs[first].alike);
    sum({{"first", runs[first].elements.first}, {"last", runs[last - 1].elements.last}, {"scale", 1.0 / copies}});
  }
}

BufferId EmittedStep::sum_of_squares(int stage) {
  const auto [slices, across] =
      std::pair(options_.data->layout().shard_states, options_.data->layout().across_replicas);
  for (const Unit& unit : role_.units) {
    if (!unit.trained() || reduced_[index(unit)].squared) continue;
    if (!reduced_[index(unit)].partial_summed) sum_partial(unit);
    if (!unit.stages.empty() && unit.stages.front() != stage) continue;  // counted there
    add_squares(unit);
  }
  const auto why = emit_.because({.phase = For::norm});
  if (squares_ < 0) {
    squares_ = emit_.buffer("norm", Category::activations, size_of(DType::f64));
    emit_.zero("norm", emit_.whole(squares_));
  }
  const Axes axes = (Axis::pipeline | Axis::expert) | Axis::tensor | (slices ? slice_axes(across) : Axes{});
  emit_.all_reduce("norm", DType::f64, axes, emit_.whole(squares_));
  return squares_;
}

void EmittedStep::keep_gradient(const Unit& unit) {
  if (options_.offload.gradients == Space::device) return;
  CHECK(options_.micro_batches == 1 && later_.empty() && unit.stages.empty(), "a gradient that is kept is complete");
  if (!reduced_[index(unit)].partial_summed) sum_partial(unit);
  add_squares(unit);
  const auto why = emit_.because(For::reduce, unit);
  const Region here = gradient(unit);
  const std::string text = unit.name + ".gradient";
  const Region home =
      emit_.whole(emit_.persistent(text + ".kept", Category::gradients, here.bytes, options_.offload.gradients));
  emit_.issue(Stream::store, Move{emit_.name(text), {here}, {home}});
  emit_.drop_gradient(unit);
  reduced_[index(unit)].slice = home;
  staged_.add_gradient(unit, home, size_of(options_.reduce));
}

// ---- Averages ----------------------------------------------------------------------------------------------------

void EmittedStep::average(const Unit& unit, const std::string& what, Axes axes, const Region& region) {
  const int ranks = options_.mesh.group_size(axes);
  if (ranks == 1) return;
  const auto why = emit_.because(For::average, unit);
  emit_.all_reduce(unit.name + what, DType::f32, axes, region);
  const TensorDesc tensor = flat(DType::f32, region.bytes / size_of(DType::f32));
  emit_.launch(unit.name + what, {Op::scale, {{"factor", 1.0 / ranks}}, {tensor, tensor}},
               {Read{region}, Write{region}});
}

void EmittedStep::average(const Unit& unit, Axes axes) {
  average(unit, ".master", axes, unit.parameters().region);
  for (const Slot& slot : unit.slots) {
    if (slot.kind != Slot::Kind::state) continue;
    CHECK(slot.spec.format == Format(DType::f32), "states are averaged in f32: " + slot.name);
    average(unit, "." + slot.name, axes, slot.region);
  }
}

// ---- Local SGD ---------------------------------------------------------------------------------------------------

void EmittedStep::set_anchor(const Unit& unit) {
  const auto why = emit_.because(For::average, unit);
  emit_.copy(unit.name + ".anchor", DType::f32, unit.parameters().region, unit.find(Slot::Kind::anchor)->region);
}

// The outer gradient takes the place of the master, which it replaces in the end. Compressed or not, it is summed in
// f32, and every rank has the same sum.
void EmittedStep::outer_step(const Unit& unit, Axes axes, const OuterSettings& outer) {
  const auto why = emit_.because(For::average, unit);
  const Region anchor = unit.find(Slot::Kind::anchor)->region,
               momentum = unit.find(Slot::Kind::strategy_state, "outer_momentum")->region,
               master = unit.parameters().region;
  const int ranks = options_.mesh.group_size(axes);
  const TensorDesc tensor = flat(DType::f32, unit.slice());
  emit_.launch(unit.name, {Op::outer_gradient, {}, {tensor, tensor, tensor}},
               {Read{anchor}, Read{master}, Write{master}});
  if (ranks > 1 && options_.compression != nullptr) {
    compress(unit, axes, false, DType::f32, master);
    finish_gradients();
  } else {
    emit_.all_reduce(unit.name, DType::f32, axes, master);
  }
  const Attributes attributes{
      {"factor", 1.0 / ranks}, {"lr", outer.lr}, {"momentum", outer.momentum}, {"nesterov", outer.nesterov}};
  emit_.launch(unit.name, {Op::outer_step, attributes, {tensor, tensor, tensor, tensor}},
               {Update{anchor}, Update{momentum}, Read{master}, Write{master}});
}

void EmittedStep::swap_anchor(const Unit& unit) {
  const auto why = emit_.because(For::average, unit);
  const Region anchor = unit.find(Slot::Kind::anchor)->region, master = unit.parameters().region;
  const std::string text = unit.name + ".swap";
  const Region between = emit_.whole(emit_.buffer(text, Category::optimizer, master.bytes));
  emit_.copy(text, DType::f32, master, between);
  emit_.copy(text, DType::f32, anchor, master);
  emit_.copy(text, DType::f32, between, anchor);
}

void EmittedStep::copy_master(const Unit& unit, const std::string& name) {
  const auto why = emit_.because(For::average, unit);
  emit_.copy(unit.name + "." + name, DType::f32, unit.parameters().region, emit_.strategy_copy(unit, name));
}

void EmittedStep::sum_copies(const Unit& unit, Axes axes, const std::string& from, const std::string& to) {
  const auto why = emit_.because(For::average, unit);
  const Region sum = emit_.strategy_copy(unit, to);
  emit_.copy(unit.name + "." + to, DType::f32, emit_.strategy_copy(unit, from), sum);
  emit_.all_reduce(unit.name + "." + to, DType::f32, axes, sum);
}

void EmittedStep::apply_delayed(const Unit& unit, Axes axes, const std::string& sum, const std::string& mine) {
  const auto why = emit_.because(For::average, unit);
  const TensorDesc tensor = flat(DType::f32, unit.slice());
  emit_.launch(
      unit.name, {Op::apply_delayed, {{"factor", 1.0 / options_.mesh.group_size(axes)}}, {tensor, tensor, tensor}},
      {Update{unit.parameters().region}, Read{emit_.strategy_copy(unit, mine)}, Read{emit_.strategy_copy(unit, sum)}});
}

}  // namespace trainer
