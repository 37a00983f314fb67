// What a program finds and leaves, and reading and writing of facts. Launches: launches.cpp, updates.cpp; collectives:
// collectives.cpp.
#include "engine/plan/verify/flow.h"

#include <algorithm>

#include "engine/plan/update_operands.h"
#include "engine/plan/verify/loop.h"

namespace trainer {
namespace {

using Note = Held::Note;
using Content = Facts::Content::Kind;

bool is_state(const Slot& slot) { return slot.kind == Slot::Kind::state || slot.kind == Slot::Kind::strategy_state; }

std::int64_t slot_elements(const Slot& slot) {
  if (slot.spec.format.block == 0) return slot.region.bytes / size_of(slot.spec.dtype());
  return slot.region.bytes * slot.spec.format.block /
         (slot.spec.format.block * size_of(slot.spec.dtype()) + size_of(DType::f32));
}

bool writes(const Program& program, const Region& region) {
  return std::ranges::any_of(program.instructions, [&](const Issued& issued) {
    bool found = false;
    for_each_access(issued.instruction, [&](Access access, const Region& one) {
      const bool meets = one.offset < region.offset + region.bytes && region.offset < one.offset + one.bytes;
      found = found || (access != Access::read && one.buffer == region.buffer && meets);
    });
    return found;
  });
}

}  // namespace

Flow::Writer Flow::writer_of(const Role& role, const Unit& unit, const Program& program) {
  if (program.kind != ProgramKind::average || role.program(ProgramKind::average, 1) == nullptr || !unit.trained())
    return kHere;
  const Region& master = unit.parameters().region;
  const bool here = writes(program, master);
  const auto others = std::ranges::count_if(role.programs, [&](const Program& other) {
    return &other != &program && other.kind == ProgramKind::average && writes(other, master);
  });
  return here ? (others > 0 ? kTwice : kHere) : others > 0 ? kElsewhere : kNowhere;
}

Flow::Flow(const Plan& plan, std::size_t stage, const MeshPoint& point, std::size_t program, FlowTables& tables,
           Report report)
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
  renews_ = program_.kind == ProgramKind::refresh || program_.kind == ProgramKind::average ||
            program_.kind == ProgramKind::settle || program_.kind == ProgramKind::swap;
  for (const Unit& unit : role_.units) writers_.push_back(writer_of(role_, unit, program_));
  declare();
}

// ---- What programs find and leave ---------------------------------------------------------------------------------

template <typename Visit>
void Flow::for_each_launch(Op op, const Visit& visit) const {
  for (const Program& program : role_.programs)
    for (const Issued& issued : program.instructions) {
      const auto* launch = std::get_if<Launch>(&issued.instruction);
      if (launch != nullptr && role_.signatures[static_cast<std::size_t>(launch->signature)].op == op) visit(*launch);
    }
}

void Flow::declare() {
  for_each_launch(Op::apply_delayed, [&](const Launch& launch) { sums_.insert(region_of(launch.operands[2]).buffer); });
  for (const Buffer& buffer : role_.buffers) {
    if (buffer.program >= 0) continue;
    const bool states = buffer.category == Category::optimizer;  // of a strategy: it is trusted
    Facts facts = Facts::all(Held::zero(), states ? std::optional(DType::f32) : std::nullopt);
    const bool sum = sums_.contains(static_cast<BufferId>(&buffer - role_.buffers.data()));
    if (plan_.drifts)
      for (Axis axis : kBatchAxes) facts.on(axis) = sum ? Held{Placement::replicate(), Note::drifted} : Held::version();
    if (buffer.space != Space::device && buffer.category == Category::gradients) facts = {};  // of a step before
    memory_.assign(buffer.offset, buffer.offset + buffer.bytes, facts);
  }
  for (const auto& [id, dtype] : {std::pair(role_.scalars, DType::f32), std::pair(role_.applied, DType::i32),
                                  std::pair(role_.good_steps, DType::i32)})
    if (id >= 0)
      declare({id, 0, role_.buffer(id).bytes}, {{0, role_.buffer(id).bytes, Facts::all(Held::same(), dtype)}});
  for (std::size_t index = 0; index < role_.units.size(); ++index) {
    const Unit& unit = role_.units[index];
    unit_layouts_.push_back(tables_.index_of(layout_of(unit)));
    const Region& master = unit.parameters().region;
    unit_buffers_[master.buffer].push_back(index);
    if (const BufferId id = unit.working().region.buffer; id != master.buffer) unit_buffers_[id].push_back(index);
    declare_unit(index);
  }
  for (const State& state : role_.states) {
    Facts facts = Facts::all(Held::same(), state.spec.dtype());
    for (Axis axis : kAxes) facts.on(axis) = {state.spec.on(axis), state.spec.whole.rank()};
    declare(state.region, {{0, state.region.bytes, facts}});
  }
  if (!restores()) return;
  for (const Unit& unit : role_.units)
    for (const Slot& slot : unit.slots)
      if (unit.trained() && (is_state(slot) || slot.kind == Slot::Kind::master))
        memory_.update(address(slot.region), address(slot.region) + slot.region.bytes, [&](Facts& facts) {
          for (Axis axis : plan_.mesh.active(kBatchAxes)) facts.on(axis) = Held::version();
        });
}

void Flow::declare_unit(std::size_t index) {
  const Unit& unit = role_.units[index];
  const Slot &parameters = unit.parameters(), &working = unit.working();
  const bool inside =
      parameters.region.buffer == working.region.buffer;  // the working copy is the master, or around it
  for (const Slot& slot : unit.slots) {
    if (!slot.persistent) continue;
    slots_.insert(slot.region.buffer);
    if (role_.space_of(slot.region) != Space::device) kept_.insert(slot.region.buffer);
  }
  if (kept_.contains(working.region.buffer)) kept_weights_.insert(working.region.buffer);
  for (const Slot& slot : unit.slots)
    if (slot.kind == Slot::Kind::working || (slot.kind == Slot::Kind::master && !inside) || is_state(slot))
      declare(slot.region, lies(index, slot_elements(slot), slot.spec.dtype()));
  if (const Slot* anchor = unit.find(Slot::Kind::anchor)) declare_anchor(index, anchor->region);
  if (!renews(index) || working.sliced() || !unit.trained() || (inside && !unit.sharded())) return;
  const std::int64_t first = address(working.region);
  memory_.assign(first, first + working.region.bytes, Facts{});  // of masters that are gone
  if (inside)
    for (const FactRange& piece : lies(index, unit.slice(), DType::f32))
      put(memory_, address(parameters.region), piece);
}

// All ranks have it alike; but `swap` leaves each rank's own weights there, and the next one brings it back.
void Flow::declare_anchor(std::size_t index, const Region& region) {
  const FactRanges pieces = lies(index, region.bytes / size_of(DType::f32), DType::f32);
  if (program_.kind != ProgramKind::swap) return declare(region, pieces);
  for (const FactRange& piece : pieces) put(memory_, address(region), piece);
}

void Flow::declare(const Region& region, const FactRanges& pieces) {
  for (const FactRange& piece : pieces)
    for (AddressMap<Facts>* map : {&memory_, &declared_}) put(*map, address(region), piece);
}

FactRanges Flow::lies(std::size_t unit, std::int64_t elements, DType dtype) {
  const Facts facts = flat(unit, elements, dtype);
  if (elements == role_.units[unit].elements) return tables_.unpacked(facts, size_of(dtype));
  return {{0, elements * size_of(dtype), facts}};
}

FactRanges Flow::lies(std::size_t unit, const ElementRange& elements, DType dtype) {
  const std::int64_t slice = role_.units[unit].slice(), width = size_of(dtype);
  FactRanges all = lies(unit, slice, dtype);
  if (elements.size() == slice) return all;
  FactRanges some;
  const std::int64_t first = elements.first * width, last = elements.last * width;
  for (FactRange& piece : all) {
    if (piece.first >= last || piece.last <= first) continue;
    if (piece.facts.layout >= 0) piece.facts.base -= first;
    some.push_back({std::max(piece.first, first) - first, std::min(piece.last, last) - first, piece.facts});
  }
  return some;
}

Facts Flow::flat(std::size_t unit, std::int64_t elements, DType dtype) {
  const std::vector<std::int32_t>& stages = role_.units[unit].stages;
  Facts facts = Facts::all(Held::same(), dtype);
  facts.stages = stage_set(stages.empty() ? std::vector{static_cast<std::int32_t>(stage_)} : stages);
  facts.layout = unit_layouts_[unit];
  facts.on(Axis::tensor) = {Placement::replicate(), Note::by_layout};
  const Unit& of = role_.units[unit];
  if (of.own_axes().has(Axis::expert)) facts.on(Axis::expert) = {Placement::replicate(), Note::by_layout};
  for (Axis axis : elements == of.elements ? Axes{} : plan_.mesh.active(of.slice_axes()))
    facts.on(axis) = Placement::shard(0);
  return facts;
}

std::int32_t Flow::stage_set(std::vector<std::int32_t> stages) {
  if (stages.empty() || static_cast<int>(stages.size()) == plan_.mesh.size(Axis::pipeline)) return -1;
  return tables_.stage_sets.try_emplace(std::move(stages), static_cast<std::int32_t>(tables_.stage_sets.size()))
      .first->second;
}

void Flow::finish() {
  finish_persistent();
  finish_units();
  for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
    const Instruction& instruction = program_.instructions[i].instruction;
    const auto* exchange = std::get_if<Exchange>(&instruction);
    const bool receives = exchange != nullptr && !exchange->receives.empty();
    const bool moves = std::holds_alternative<Move>(instruction);
    if ((receives || moves || std::holds_alternative<Collective>(instruction)) && !read_[i])
      report_(i, "brings what nobody reads");
  }
}

void Flow::finish_persistent() {
  const auto leaves = [&](BufferId id, const Facts& is, Axis axis, const std::string& due) {
    mix(static_cast<std::size_t>(std::max(is.writer, 0)), axis,
        "leaves " + role_.name(role_.buffer(id).name) + " " + is.along(axis) + ", which is to be " + due);
  };
  for (std::size_t id = 0; id < role_.buffers.size(); ++id) {
    const Buffer& buffer = role_.buffers[id];
    if (buffer.program >= 0) continue;
    const bool sum = sums_.contains(static_cast<BufferId>(id));
    declared_.update_pieces(buffer.offset, buffer.offset + buffer.bytes,
                            [&](std::int64_t first, std::int64_t last, const Facts& due) {
                              memory_.update_pieces(first, last, [&](std::int64_t, std::int64_t, const Facts& left) {
                                const Facts is = at_home(left);
                                if (is.writer >= 0) read_[static_cast<std::size_t>(is.writer)] = 1;
                                for (Axis axis : plan_.mesh.active(sum ? kBatchAxes : Axes{}))
                                  if (!is.on(axis).is(Note::drifted) || is.on(axis).placement.is_partial())
                                    leaves(static_cast<BufferId>(id), is, axis, "a sum");
                                if (!due.dtype) return;  // nothing is declared
                                for (Axis axis : kAxes) {
                                  if (!active(axis) || tables_.fits(due, is, axis)) continue;
                                  if (is.on(axis) == Held::version() && restores() && is.writer < 0)
                                    continue;  // states may stay a rank's own; masters: finish_units
                                  leaves(static_cast<BufferId>(id), is, axis, due.along(axis));
                                }
                              });
                            });
  }
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
    if (steps && record.next != 0) report_(last, "ends a step that has updated a part of " + unit.name);
    for (const Slot& slot : unit.slots)
      if (returns(unit, slot) && !all_updated(slot.region))
        report_(last, "ends a program that has not brought back " + slot.name + " of " + unit.name);
    if (steps && unit.trained() && !(all_written(unit.parameters().region) && all_written(unit.updated_working())))
      report_(last, "ends a step that has left out weights of " + unit.name);
    if (steps && unit.trained() && record.states != state_operands(unit).size())
      report_(last, "ends a step that has updated " + std::to_string(record.states) + " states of " + unit.name);
    // One rank has nobody to average with, unless an outer optimizer moves its weights.
    const bool apart = plan_.mesh.group_size(kBatchAxes) > 1 || unit.find(Slot::Kind::anchor) != nullptr;
    if (unit.trained() && restores() && apart && record.master < 0 && renews(index))
      report_(last, "ends without bringing " + unit.name + " together" +
                        (writers_[index] == kNowhere ? ", and so do the averages of all other parts" : ""));
    if (writers_[index] == kTwice) report_(last, "brings " + unit.name + " together, which another average does too");
    finish_anchor(last, unit);
    if (record.master < 0 && !renews(index)) continue;
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
  }
}

// By this program.
bool Flow::all_written(const Region& region) {
  bool all = true;
  const std::int64_t begin = address(region);
  memory_.update_pieces(begin, begin + region.bytes,
                        [&](std::int64_t, std::int64_t, const Facts& there) { all = all && there.writer >= 0; });
  return all;
}

// It is made of new masters, and keeps what each rank has while the masters are what all agreed on.
void Flow::finish_anchor(std::size_t last, const Unit& unit) {
  const Slot* const anchor = unit.find(Slot::Kind::anchor);
  if (anchor == nullptr) return;
  bool made = true, own = true;
  for_each_piece(anchor->region, [&](const FactRange& piece) {
    made = made && piece.facts.writer >= 0;
    for (Axis axis : plan_.mesh.active(kBatchAxes)) own = own && piece.facts.on(axis) == Held::version();
  });
  if (program_.kind == ProgramKind::refresh && !made)
    report_(last, "ends with an anchor of " + unit.name + " that is older than its master weights");
  if (program_.kind == ProgramKind::swap && !own)
    report_(last, "ends without keeping what each rank has of " + unit.name);
}

// ---- Reading and writing ------------------------------------------------------------------------------------------

template <typename Visit>
void Flow::for_each_piece(const Region& region, const Visit& visit) {
  const std::int64_t begin = address(region);
  memory_.update_pieces(begin, begin + region.bytes, [&](std::int64_t first, std::int64_t last, const Facts& there) {
    if (there.writer >= 0) read_[static_cast<std::size_t>(there.writer)] = 1;
    FactRange piece{first - begin, last - begin, there};
    if (there.layout >= 0) piece.facts.base -= begin;  // of region, not of memory
    visit(piece);
  });
}

FactRanges Flow::read(const Region& region) {
  FactRanges pieces;
  for_each_piece(region, [&](const FactRange& piece) { pieces.push_back(piece); });
  return pieces;
}

Facts Flow::uniform(const Region& region) {
  Facts all;
  for_each_piece(region,
                 [&](const FactRange& piece) { all = piece.first == 0 ? piece.facts : merged(all, piece.facts); });
  return all;
}

void Flow::put(AddressMap<Facts>& into, std::int64_t begin, const FactRange& piece) {
  Facts facts = piece.facts;
  if (facts.run > 0) facts.phase = begin % facts.run;
  if (facts.layout >= 0) facts.base += begin;
  into.assign(begin + piece.first, begin + piece.last, facts);
}

void Flow::write(std::size_t i, const Region& region, Facts facts) {
  facts.writer = static_cast<std::int32_t>(i);
  put(memory_, address(region), {0, region.bytes, facts});
  note_write(i, region);
}

void Flow::write(std::size_t i, const Region& region, FactRanges pieces) {
  for (FactRange& piece : pieces) {
    piece.facts.writer = static_cast<std::int32_t>(i);
    put(memory_, address(region), piece);
  }
  note_write(i, region);
}

void Flow::note_write(std::size_t i, const Region& region) {
  const auto found = unit_buffers_.find(region.buffer);
  if (found == unit_buffers_.end()) return;
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

void Flow::need_same(std::size_t i, const Region& region, const std::string& what) {
  const Facts facts = uniform(region), same = Facts::all(Held::same(), facts.dtype);
  for (Axis axis : kAxes) {
    const bool version = facts.on(axis) == Held::version() && drifting(axis);
    if (active(axis) && !version && !tables_.fits(same, facts, axis)) mix(i, axis, what + " " + facts.along(axis));
  }
}

void Flow::receive(std::size_t i, const Region& region, const FactRanges& sent) {
  FactRanges pieces = sent;
  for (FactRange& piece : pieces) piece.facts.on(Axis::pipeline) = Held::partial(), piece.facts.stages = -1;
  write(i, region, pieces);
}

// ---- Instructions that do not communicate -------------------------------------------------------------------------

bool Flow::same(const Facts& a, const Facts& b) {
  return a.held == b.held && a.dtype == b.dtype && a.stages == b.stages && a.layout == b.layout &&
         a.content == b.content && a.run == b.run && a.row == b.row && (a.layout < 0 || a.base == b.base) &&
         (a.run == 0 || a.phase == b.phase);
}

// It may visit a place twice.
void Flow::meet_loops() {
  if (found_.loop != nullptr && at_ == static_cast<std::size_t>(found_.loop->last)) leave_loop();
  if (found_.loop != nullptr || loops_met_ == program_.loops.size()) return;
  const Loop& next = program_.loops[loops_met_];
  if (at_ == static_cast<std::size_t>(next.first)) found_ = {&next, memory_, units_, scalar_updates_};
}

// A pass over a loop leaves the facts that it found, in the next parts of rings (loop.h).
void Flow::leave_loop() {
  const auto moved_by = [](Facts facts, std::int64_t bytes) {
    facts.base += facts.layout >= 0 ? bytes : 0;
    if (facts.run > 0) facts.phase = ((facts.phase + bytes) % facts.run + facts.run) % facts.run;
    return facts;
  };
  const auto writes = [&](std::int32_t writer, BufferId ring) {
    bool found = false;
    if (writer >= 0)
      for_each_access(program_.instructions[static_cast<std::size_t>(writer)].instruction,
                      [&](Access access, const Region& region) {
                        found = found || (access != Access::read && region.buffer == ring);
                      });
    return found;
  };
  const auto alike = [&](BufferId ring, std::int64_t, const Facts& before, const Facts& now) {
    return same(before, now) || (ring >= 0 && !writes(before.writer, ring) &&
                                 !writes(now.writer, ring));  // of buffers that were there before
  };
  const auto program = static_cast<std::int32_t>(&program_ - role_.programs.data());
  const std::vector<BufferId> rings = rings_of(role_, program, *found_.loop);
  const AddressMap<Facts> moved = after_pass(found_.memory, role_, program, rings, moved_by);
  if (!same_everywhere(moved, memory_, role_, rings, alike))
    report_(at_ - 1, "ends a pass that leaves bytes of another kind than it found");
  if (found_.units != units_ || found_.scalar_updates != scalar_updates_)
    report_(at_ - 1, "ends a pass that updates units");
  found_ = {};
  ++loops_met_;
}

void Flow::run_until(std::size_t end) {
  for (;; ++at_) {
    meet_loops();
    if (at_ >= end) return;
    const Instruction& instruction = program_.instructions[at_].instruction;
    if (const auto* one = std::get_if<Launch>(&instruction))
      launch(at_, *one);
    else if (const auto* in = std::get_if<CopyIn>(&instruction))
      copy_in(at_, *in);
    else if (const auto* out = std::get_if<CopyOut>(&instruction))
      copy_out(at_, *out);
    else if (const auto* one_move = std::get_if<Move>(&instruction))
      move(at_, *one_move);
  }
}

// ---- What is kept off the device ----

Facts Flow::at_home(const Facts& facts) {
  Facts values = facts;
  if (facts.is(Content::updated)) values.content = {};
  return values;
}

std::int64_t Flow::home_of(const Region& region) {
  std::optional<std::int64_t> home;
  bool one = true;
  for_each_piece(region, [&](const FactRange& piece) {
    const std::int64_t further = piece.facts.content.home;
    one = one && further == home.value_or(further);
    home = further;
  });
  return one ? address(region) + home.value_or(0) : -1;
}

bool Flow::all_updated(const Region& region) {
  bool all = true;
  for_each_piece(region, [&](const FactRange& piece) { all = all && piece.facts.is(Content::updated); });
  return all;
}

// Of a slot what comes from its home is a copy of what lies there, and what returns was moved from there and has been
// updated, or is a working copy that was made for it. Of other bytes it is known where they lay, unless they leave the
// device to be kept: then they are at home there.
void Flow::move(std::size_t i, const Move& move) {
  const Region &from = move.from.region, &to = move.to.region;
  const bool comes = role_.space_of(to) == Space::device;
  const bool returns = slots_.contains(to.buffer), leaves_home = !returns && slots_.contains(from.buffer);
  if (returns && (home_of(from) != address(to) || !all_updated(from)))
    report_(i, "brings to a place what is not the update of what lies there");
  FactRanges pieces = read(from);
  const Category category = role_.buffer((comes ? from : to).buffer).category;
  for (FactRange& piece : pieces) {
    if (comes && category == Category::activations && !was_left_by_pass(i, piece.facts.writer))
      report_(i, "brings back what another value or another pass has left there");
    if ((leaves_home && comes && kept_weights_.contains(from.buffer)) || (returns && comes))
      piece.facts = at_home(piece.facts);
    else if (returns || leaves_home)
      piece.facts.content = {returns ? Content::updated : Content::staged};
    const bool known = leaves_home || (!returns && (comes || category == Category::gradients));
    piece.facts.content.home = known ? address(from) - address(to) : 0;
    piece.facts.writer = static_cast<std::int32_t>(i);
    put(memory_, address(to), piece);
  }
  // Of a step the update is the write of what is kept off the device.
  if (returns && (comes || !makes_step(program_.kind))) note_write(i, to);
}

// A value of a pass that comes back is the one of its name that the same micro-batch has moved away.
bool Flow::was_left_by_pass(std::size_t i, std::int32_t writer) const {
  if (writer < 0) return false;
  const Issued &here = program_.instructions[i], &there = program_.instructions[static_cast<std::size_t>(writer)];
  const auto* left = std::get_if<Move>(&there.instruction);
  return left != nullptr && left->name == std::get<Move>(here.instruction).name &&
         there.why.micro_batch == here.why.micro_batch;
}

bool Flow::returns(const Unit& unit, const Slot& slot) const {
  if (!unit.trained() || !slot.persistent || !kept_.contains(slot.region.buffer)) return false;
  if (makes_step(program_.kind)) return role_.scalars >= 0;
  return program_.kind == ProgramKind::refresh && slot.kind == Slot::Kind::working &&
         !(unit.updated_working() == unit.parameters().region);
}

std::int64_t Flow::home_of_copy(std::size_t i, const Region& master) {
  const auto index = static_cast<std::size_t>(program_.instructions[i].why.unit);
  if (index >= role_.units.size() || !role_.units[index].trained()) return -1;
  const Unit& unit = role_.units[index];
  const Region of = unit.parameters().region, copy = unit.updated_working();
  if (copy == of || !kept_.contains(copy.buffer)) return -1;
  const std::int64_t first = home_of(master) - address(of);
  if (first < 0 || first + master.bytes > of.bytes) return -1;
  return address(copy) + first / size_of(DType::f32) * size_of(unit.compute);
}

// ---- Fields ----

// All but the batch is the loop's, and the same everywhere.
void Flow::copy_in(std::size_t i, const CopyIn& copy) {
  const Field& field = role_.fields[static_cast<std::size_t>(copy.field)];
  if (field.kind == Field::Kind::result) report_(i, "reads what the loop is told");
  Facts facts = Facts::all(Held::same(), field.spec.dtype());
  for (Axis axis : kAxes) facts.on(axis) = {field.spec.on(axis), field.spec.whole.rank()};
  if (field.kind == Field::Kind::batch) facts.on(Axis::pipeline) = Held::partial();
  write(i, copy.region.region, facts);
}

void Flow::copy_out(std::size_t i, const CopyOut& copy) {
  const Field& field = role_.fields[static_cast<std::size_t>(copy.field)];
  if (field.kind == Field::Kind::scalar) report_(i, "writes what the loop gives");
  if (field.kind == Field::Kind::result)
    need_same(i, copy.region.region, "reports what is");
  else
    read(copy.region.region);
}

}  // namespace trainer
