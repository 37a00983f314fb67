// What a program finds and leaves, and reading and writing of facts. Launches: verify_launches.cpp, verify_updates.cpp; collectives:
// verify_collectives.cpp.
#include "engine/plan/verify_flow.h"

#include <algorithm>

namespace trainer {
namespace {

using Kind = Way::Kind;

std::int64_t slot_elements(const Slot& slot) {
  if (slot.spec.format.block == 0) return slot.region.bytes / size_of(slot.spec.dtype());
  return slot.region.bytes * slot.spec.format.block / (slot.spec.format.block * size_of(slot.spec.dtype()) + size_of(DType::f32));
}

}  // namespace

std::int32_t FlowTables::index_of(const FlatLayout& layout) {
  const auto [at, added] = layout_indices.try_emplace(layout, static_cast<std::int32_t>(layouts.size()));
  if (added) layouts.push_back(layout);
  return at->second;
}

Flow::Flow(const Plan& plan, std::size_t stage, const MeshPoint& point, std::size_t program, FlowTables& tables, Report report)
    : plan_(plan),
      stage_(stage),
      role_(plan.roles[stage]),
      point_(point),
      program_(role_.programs[program]),
      report_(std::move(report)),
      tables_(tables),
      rules_(role_) {
  read_.resize(program_.instructions.size(), 0);
  units_.resize(role_.units.size());
  renews_ = program_.kind == ProgramKind::refresh || program_.kind == ProgramKind::average || program_.kind == ProgramKind::settle;
  declare();
}

// ---- What programs find and leave ------------------------------------------------------------------------------------

void Flow::declare() {
  const bool restores = plan_.drifts && program_.kind != ProgramKind::refresh && renews_;
  for (const Program& program : role_.programs)  // sums that a later program takes
    for (const Issued& issued : program.instructions)
      if (const auto* launch = std::get_if<Launch>(&issued.instruction); launch != nullptr && role_.signatures[static_cast<std::size_t>(launch->signature)].op == Op::apply_delayed)
        sums_.insert(region_of(launch->operands[2]).buffer);
  for (const Buffer& buffer : role_.buffers) {
    if (buffer.program >= 0) continue;
    Facts facts = Facts::all(Way::zero(), buffer.category == Category::optimizer ? std::optional(DType::f32) : std::nullopt);  // of a strategy: it is trusted
    if (plan_.drifts)
      for (Axis axis : kBatchAxes) facts.on(axis) = {sums_.contains(static_cast<BufferId>(&buffer - role_.buffers.data())) ? Kind::drift_sum : Kind::drift};
    memory_.assign(buffer.offset, buffer.offset + buffer.bytes, facts);
  }
  for (const auto& [id, dtype] : {std::pair(role_.scalars, DType::f32), std::pair(role_.applied, DType::i32), std::pair(role_.good_steps, DType::i32)})
    if (id >= 0) declare(role_.buffer(id).offset, role_.buffer(id).bytes, Facts::all(Way::same(), dtype));
  for (std::size_t index = 0; index < role_.units.size(); ++index) {
    const Unit& unit = role_.units[index];
    unit_layouts_.push_back(tables_.index_of(layout_of(unit)));
    const Region& master = unit.parameters().region;
    unit_buffers_[master.buffer].push_back(index);
    if (unit.trained()) masters_.try_emplace({master.buffer, master.offset}, index);
    if (const BufferId id = unit.working().region.buffer; id != master.buffer) unit_buffers_[id].push_back(index);
    declare_unit(unit);
  }
  for (const Program& program : role_.programs)
    for (const Issued& issued : program.instructions) {
      const auto* launch = std::get_if<Launch>(&issued.instruction);
      if (launch == nullptr || role_.signatures[static_cast<std::size_t>(launch->signature)].op != Op::pack_weight) continue;
      const Region &from = region_of(launch->operands[0]), &to = region_of(launch->operands[1]);
      const auto unit = unit_buffers_.find(from.buffer);
      if (role_.buffer(to.buffer).program >= 0 || unit == unit_buffers_.end()) continue;
      packed_[to.buffer] = {unit->second.front(), -1};
      Facts facts;
      declared_.update(address(from), address(from) + 1, [&](Facts& of) { facts = of; });
      declare(address(to), to.bytes, facts);
    }
  if (restores)  // masters and states have drifted apart
    for (const Unit& unit : role_.units) {
      const auto drift = [&](std::int64_t first, std::int64_t bytes) {
        memory_.update(first, first + bytes, [&](Facts& facts) {
          for (Axis axis : kBatchAxes)
            if (active(axis)) facts.on(axis) = {Kind::drift};
        });
      };
      for (const Slot& slot : unit.slots) {
        const bool state = slot.kind == Slot::Kind::state || slot.kind == Slot::Kind::strategy_state;
        if (unit.trained() && (state || slot.kind == Slot::Kind::master)) drift(address(slot.region), slot.region.bytes);
      }
    }
}

void Flow::declare_unit(const Unit& unit) {
  const Slot &parameters = unit.parameters(), &working = unit.working();
  const bool inside = parameters.region.buffer == working.region.buffer;  // the working copy is the master, or around it
  for (const Slot& slot : unit.slots) {
    const bool state = slot.kind == Slot::Kind::state || slot.kind == Slot::Kind::strategy_state;
    if (slot.kind == Slot::Kind::working || (slot.kind == Slot::Kind::master && !inside) || state)
      declare_flat(unit, slot, state && slot.own() ? unit.sharded() : unit.elements > slot_elements(slot));
  }
  if (!renews_ || working.sliced() || !unit.trained() || (inside && !unit.sharded())) return;
  const std::int64_t first = address(working.region);
  memory_.assign(first, first + working.region.bytes, Facts{});  // of masters that are gone
  if (inside) {
    Facts facts = Facts::all(Way::same(), DType::f32);
    make_slice(facts, unit_layouts_.back(), address(parameters.region));
    facts.on(Axis::pipeline) = stages_way(unit.stages);
    memory_.assign(address(parameters.region), address(parameters.region) + parameters.region.bytes, facts);
  }
}

void Flow::declare(std::int64_t first, std::int64_t bytes, const Facts& facts) {
  memory_.assign(first, first + bytes, facts);
  declared_.assign(first, first + bytes, facts);
}

// A flat buffer of a unit, or this rank's slice of one.
void Flow::declare_flat(const Unit& unit, const Slot& slot, bool slice) {
  const std::int64_t first = address(slot.region);
  const DType dtype = slot.spec.dtype();
  Facts facts = Facts::all(Way::same(), dtype);
  facts.on(Axis::pipeline) = stages_way(unit.stages);
  const std::int32_t layout = unit_layouts_.back();
  if (slice) {
    make_slice(facts, layout, first);
    return declare(first, slot_elements(slot) * size_of(dtype), facts);
  }
  for (const LayoutEntry& entry : tables_.layouts[static_cast<std::size_t>(layout)]) {
    facts.on(Axis::tensor) = entry.tensor;
    declare(first + entry.first * size_of(dtype), (entry.last - entry.first) * size_of(dtype), facts);
  }
}

void Flow::make_slice(Facts& facts, std::int32_t layout, std::int64_t base) const {
  for (Axis axis : slice_axes()) facts.on(axis) = {Kind::slice, 0, 1, 1, layout, base};
  facts.on(Axis::tensor) = {Kind::slice, 0, 1, 1, layout};
}

Way Flow::stages_way(const std::vector<std::int32_t>& stages) {
  if (!active(Axis::pipeline)) return Way::same();
  if (stages.empty()) return Way::piece();
  if (static_cast<int>(stages.size()) == plan_.mesh.size(Axis::pipeline)) return Way::same();
  const auto at = tables_.stage_sets.try_emplace(stages, static_cast<std::int32_t>(tables_.stage_sets.size())).first;
  return {Kind::shared, 0, 1, 1, at->second};
}

void Flow::finish() {
  finish_persistent();
  finish_units();
  for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
    const Instruction& instruction = program_.instructions[i].instruction;
    const auto* exchange = std::get_if<Exchange>(&instruction);
    const bool receives = exchange != nullptr && !exchange->receives.empty();
    if ((receives || std::holds_alternative<Collective>(instruction)) && !read_[i]) report_(i, "brings what nobody reads");
  }
}

void Flow::finish_persistent() {
  const bool restores = plan_.drifts && program_.kind != ProgramKind::refresh && renews_;
  for (const Buffer& buffer : role_.buffers) {
    if (buffer.program >= 0) continue;
    declared_.update_pieces(buffer.offset, buffer.offset + buffer.bytes, [&](std::int64_t first, std::int64_t last, const Facts& due) {
      memory_.update_pieces(first, last, [&](std::int64_t, std::int64_t, const Facts& is) {
        if (is.writer >= 0) read_[static_cast<std::size_t>(is.writer)] = 1;
        if (!due.dtype) return;  // nothing is declared
        for (Axis axis : kAxes) {
          if (!active(axis) || fits(due.on(axis), is.on(axis))) continue;
          if (is.on(axis).is(Kind::drift) && restores && is.writer < 0) continue;  // states may stay a rank's own; masters: finish_units
          report_(static_cast<std::size_t>(std::max(is.writer, 0)), "leaves " + role_.name(buffer.name) + " " + describe(is.on(axis)) +
                                                                        " along " + std::string(name_of(axis)) + ", which is to be " +
                                                                        describe(due.on(axis)));
        }
      });
    });
  }
  for (BufferId id : sums_)
    memory_.update(role_.buffer(id).offset, role_.buffer(id).offset + role_.buffer(id).bytes, [&](const Facts& is) {
      for (Axis axis : kBatchAxes)
        if (active(axis) && !is.on(axis).is(Kind::drift_sum))
          report_(static_cast<std::size_t>(std::max(is.writer, 0)), "leaves " + role_.name(role_.buffer(id).name) + " " + describe(is.on(axis)) + ", which is to be a sum");
    });
}

void Flow::finish_units() {
  const std::size_t last = program_.instructions.empty() ? 0 : program_.instructions.size() - 1;
  const bool steps = makes_step(program_.kind) && role_.scalars >= 0;
  if (steps && scalar_updates_ != 1)
    report_(last, "ends a step that has updated its scalars " + std::to_string(scalar_updates_) + " times");
  for (std::size_t index = 0; index < role_.units.size(); ++index) {
    const Unit& unit = role_.units[index];
    const UnitRecord& record = units_[index];
    if (steps && record.updates != (unit.trained() ? 1 : 0))
      report_(last, "ends a step that has updated " + unit.name + " " + std::to_string(record.updates) + " times");
    if (unit.trained() && plan_.drifts && renews_ && program_.kind != ProgramKind::refresh && record.master < 0)
      report_(last, "ends without bringing " + unit.name + " together");
    if (record.master < 0 && !renews_) continue;
    std::int32_t newest = record.master;
    if (unit.trained() && !(unit.updated_working() == unit.parameters().region)) {
      if (record.slice < std::max(newest, 0))
        report_(last, "ends with a working copy of " + unit.name + " that is older than its master weights");
      newest = std::max(newest, record.slice);
    }
    if (unit.sharded() && !unit.working().sliced()) {
      if (record.working < std::max(newest, 0)) report_(last, "ends without gathering " + unit.name);
      newest = std::max(newest, record.working);
    }
    for (const auto& [buffer, packed] : packed_)
      if (packed.first == index && packed.second < std::max(newest, 0))
        report_(last, "ends with packed weights " + role_.name(role_.buffer(buffer).name) + " that are older than the working copy");
  }
}

// ---- Reading and writing ---------------------------------------------------------------------------------------------

template <typename Visit>
void Flow::for_each_piece(const Region& region, const Visit& visit) {
  const std::int64_t begin = address(region);
  memory_.update_pieces(begin, begin + region.bytes, [&](std::int64_t first, std::int64_t last, const Facts& there) {
    if (there.writer >= 0) read_[static_cast<std::size_t>(there.writer)] = 1;
    FactRange piece{first - begin, last - begin, there};
    for (Way& way : piece.facts.ways)
      if (way.is(Kind::slice)) way.base -= begin;  // of region, not of memory
    if (piece.facts.on(Axis::tensor).is(Kind::slice)) piece.facts.on(Axis::tensor).base = 0;
    visit(piece);
  });
}

FactRanges Flow::read(std::size_t, const Region& region) {
  FactRanges pieces;
  for_each_piece(region, [&](const FactRange& piece) { pieces.push_back(piece); });
  return pieces;
}

Facts Flow::uniform(std::size_t, const Region& region) {
  Facts all;
  bool first = true;
  for_each_piece(region, [&](const FactRange& piece) {
    all = first ? piece.facts : merged(all, piece.facts);
    first = false;
  });
  return all;
}

void Flow::put(std::size_t i, std::int64_t begin, const FactRange& piece) {
  Facts facts = piece.facts;
  facts.writer = static_cast<std::int32_t>(i);
  if (facts.run > 0) facts.phase = begin % facts.run;
  for (Axis axis : kSliceAxes)
    if (facts.on(axis).is(Kind::slice)) facts.on(axis).base += begin;
  memory_.assign(begin + piece.first, begin + piece.last, facts);
}

void Flow::write(std::size_t i, const Region& region, const Facts& facts) {
  put(i, address(region), {0, region.bytes, facts});
  note_write(i, region);
}

void Flow::write(std::size_t i, const Region& region, const FactRanges& pieces) {
  for (const FactRange& piece : pieces) put(i, address(region), piece);
  note_write(i, region);
}

void Flow::note_write(std::size_t i, const Region& region) {
  const auto found = unit_buffers_.find(region.buffer);
  if (found == unit_buffers_.end()) {
    if (const auto packed = packed_.find(region.buffer); packed != packed_.end()) packed->second.second = static_cast<std::int32_t>(i);
    return;
  }
  const auto meets = [&](const Region& other) {
    const std::int64_t a = address(region), b = address(other);
    return other.buffer == region.buffer && a < b + other.bytes && b < a + region.bytes;
  };
  for (std::size_t index : found->second) {
    const Unit& unit = role_.units[index];
    UnitRecord& record = units_[index];
    if (unit.trained() && meets(unit.parameters().region)) record.master = static_cast<std::int32_t>(i);
    if (meets(unit.updated_working())) record.slice = static_cast<std::int32_t>(i);
    if (region.buffer == unit.whole_working()) record.working = static_cast<std::int32_t>(i);
  }
}

bool Flow::need_same(std::size_t i, const Region& region, const std::string& what) {
  const Facts facts = uniform(i, region);
  bool all = true;
  for (Axis axis : kAxes) {
    const Way& way = facts.on(axis);
    if (!active(axis) || way.is(Kind::same) || way.is(Kind::zero) || (way.is(Kind::drift) && drifting(axis))) continue;
    mix(i, axis, what + " " + describe(way));
    all = false;
  }
  return all;
}

void Flow::receive(std::size_t i, const Region& region, const FactRanges& sent) {
  FactRanges pieces = sent;
  for (FactRange& piece : pieces) piece.facts.on(Axis::pipeline) = Way::piece();
  write(i, region, pieces);
}

// ---- Instructions that do not communicate ----------------------------------------------------------------------------

void Flow::run_until(std::size_t end) {
  for (; at_ < end; ++at_) {
    const Instruction& instruction = program_.instructions[at_].instruction;
    if (const auto* one = std::get_if<Launch>(&instruction))
      launch(at_, *one);
    else if (const auto* in = std::get_if<CopyIn>(&instruction))
      copy_in(at_, *in);
    else if (const auto* out = std::get_if<CopyOut>(&instruction))
      copy_out(at_, *out);
  }
}

// All but the batch is the loop's, and the same everywhere.
void Flow::copy_in(std::size_t i, const CopyIn& copy) {
  const Field& field = role_.fields[static_cast<std::size_t>(copy.field)];
  if (field.kind == Field::Kind::result) report_(i, "reads what the loop is told");
  Facts facts = Facts::all(Way::same(), field.spec.dtype());
  for (Axis axis : kAxes) facts.on(axis) = way_of(field.spec.on(axis), field.spec.whole.rank());
  if (field.kind == Field::Kind::batch) facts.on(Axis::pipeline) = Way::piece();
  write(i, copy.region.region, facts);
}

void Flow::copy_out(std::size_t i, const CopyOut& copy) {
  const Field& field = role_.fields[static_cast<std::size_t>(copy.field)];
  if (field.kind == Field::Kind::scalar) report_(i, "writes what the loop gives");
  if (field.kind == Field::Kind::result)
    need_same(i, copy.region.region, "reports what is");
  else
    uniform(i, copy.region.region);
}

}  // namespace trainer
