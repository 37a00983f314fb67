// How each instruction turns facts into facts.
#include "engine/plan/verify_flow.h"

#include <algorithm>
#include <cmath>

namespace trainer {
namespace {

using Kind = Way::Kind;

constexpr std::array kDataAxes{Axis::replicate, Axis::shard};

bool is_optimizer(Op op) { return op == Op::sgd || op == Op::adam || op == Op::adamw || op == Op::lion; }

bool is_one(double value) { return std::abs(value - 1.0) < 1e-9; }

double real_or_one(const Signature& signature, std::string_view name) {
  return signature.attributes.has(name) ? signature.attributes.real(name) : 1.0;
}

std::size_t index_of(Axis axis) { return static_cast<std::size_t>(axis); }

}  // namespace

std::int32_t FlowTables::index_of(const FlatLayout& layout) {
  const auto [at, added] = layout_indices.try_emplace(layout, static_cast<std::int32_t>(layouts.size()));
  if (added) layouts.push_back(layout);
  return at->second;
}

Flow::Flow(const Plan& plan, std::size_t stage, int shard, std::size_t program, FlowTables& tables, Report report)
    : plan_(plan),
      stage_(stage),
      role_(plan.roles[stage]),
      shard_(shard),
      program_(role_.programs[program]),
      report_(std::move(report)),
      tables_(tables),
      rules_(role_) {
  read_.resize(program_.instructions.size(), 0);
  units_.resize(role_.units.size());
  renews_ = program_.name == "refresh" || program_.name == "average" || program_.name == "settle";
  declare();
}

// ---- What programs find and leave ------------------------------------------------------------------------------------

void Flow::declare() {
  const bool restores = plan_.drifts && program_.name != "refresh" && renews_;
  for (const Program& program : role_.programs)  // sums that a later program takes
    for (const Issued& issued : program.instructions)
      if (const auto* launch = std::get_if<Launch>(&issued.instruction); launch != nullptr && role_.signatures[static_cast<std::size_t>(launch->signature)].op == Op::apply_delayed)
        sums_.insert(region_of(launch->operands[2]).buffer);
  for (const Buffer& buffer : role_.buffers) {
    if (buffer.program >= 0) continue;
    Facts facts = Facts::all(Way::zero(), buffer.category == Category::optimizer ? std::optional(DType::f32) : std::nullopt);  // of a strategy: it is trusted
    if (plan_.drifts)
      for (Axis axis : kDataAxes) facts.on(axis) = {sums_.contains(static_cast<BufferId>(&buffer - role_.buffers.data())) ? Kind::drift_sum : Kind::drift};
    memory_.assign(buffer.offset, buffer.offset + buffer.bytes, facts);
  }
  for (const auto& [id, dtype] : {std::pair(role_.scalars, DType::f32), std::pair(role_.applied, DType::i32)})
    if (id >= 0) declare(role_.buffer(id).offset, role_.buffer(id).bytes, Facts::all(Way::same(), dtype));
  for (std::size_t index = 0; index < role_.units.size(); ++index) {
    const Unit& unit = role_.units[index];
    unit_layouts_.push_back(tables_.index_of(layout_of(unit)));
    unit_buffers_[unit.master.buffer].push_back(index);
    for (const BufferId id : {unit.working, unit.working_slice.buffer})
      if (id >= 0 && id != unit.master.buffer && unit_buffers_[id] != std::vector{index}) unit_buffers_[id].push_back(index);
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
          for (Axis axis : kDataAxes)
            if (active(axis)) facts.on(axis) = {Kind::drift};
        });
      };
      drift(address(unit.master), unit.master.bytes);
      for (BufferId state : unit.states) drift(role_.buffer(state).offset, role_.buffer(state).bytes);
    }
}

void Flow::declare_unit(const Unit& unit) {
  const bool sliced = unit.sharded();
  if (unit.working >= 0) declare_flat(unit, role_.buffer(unit.working).offset, false, unit.compute);
  const bool inside = unit.master.buffer == unit.working;
  if (!inside) declare_flat(unit, address(unit.master), sliced, DType::f32);
  if (unit.working_slice.buffer != unit.working && !(unit.working_slice == unit.master))
    declare_flat(unit, address(unit.working_slice), sliced, unit.compute);
  for (BufferId state : unit.states) declare_flat(unit, role_.buffer(state).offset, sliced, DType::f32);
  if (!renews_ || unit.working < 0) return;
  const Buffer& working = role_.buffer(unit.working);
  if (inside && !sliced) return;
  memory_.assign(working.offset, working.offset + working.bytes, Facts{});  // of masters that are gone
  if (inside) {
    Facts facts = Facts::all(Way::same(), DType::f32);
    facts.on(Axis::shard) = facts.on(Axis::tensor) = {Kind::slice, 0, 1, unit_layouts_.back()};
    facts.on(Axis::shard).base = address(unit.master);
    facts.on(Axis::pipeline) = stages_way(unit.stages);
    memory_.assign(address(unit.master), address(unit.master) + unit.master.bytes, facts);
  }
}

void Flow::declare(std::int64_t first, std::int64_t bytes, const Facts& facts) {
  memory_.assign(first, first + bytes, facts);
  declared_.assign(first, first + bytes, facts);
}

// A flat buffer of a unit, or this rank's slice of one.
void Flow::declare_flat(const Unit& unit, std::int64_t first, bool slice, DType dtype) {
  Facts facts = Facts::all(Way::same(), dtype);
  facts.on(Axis::pipeline) = stages_way(unit.stages);
  const std::int32_t layout = unit_layouts_.back();
  if (slice) {
    facts.on(Axis::tensor) = {Kind::slice, 0, 1, layout};
    facts.on(Axis::shard) = {Kind::slice, 0, 1, layout, first};
    return declare(first, unit.slice() * size_of(dtype), facts);
  }
  for (const LayoutEntry& entry : tables_.layouts[static_cast<std::size_t>(layout)]) {
    facts.on(Axis::tensor) = entry.tensor;
    declare(first + entry.first * size_of(dtype), (entry.last - entry.first) * size_of(dtype), facts);
  }
}

Way Flow::stages_way(const std::vector<std::int32_t>& stages) {
  if (!active(Axis::pipeline)) return Way::same();
  if (stages.empty()) return Way::piece();
  if (static_cast<int>(stages.size()) == plan_.mesh.size(Axis::pipeline)) return Way::same();
  const auto at = tables_.stage_sets.try_emplace(stages, static_cast<std::int32_t>(tables_.stage_sets.size())).first;
  return {Kind::shared, 0, 1, at->second};
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
  const bool restores = plan_.drifts && program_.name != "refresh" && renews_;
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
      for (Axis axis : kDataAxes)
        if (active(axis) && !is.on(axis).is(Kind::drift_sum))
          report_(static_cast<std::size_t>(std::max(is.writer, 0)), "leaves " + role_.name(role_.buffer(id).name) + " " + describe(is.on(axis)) + ", which is to be a sum");
    });
}

void Flow::finish_units() {
  const std::size_t last = program_.instructions.empty() ? 0 : program_.instructions.size() - 1;
  const bool steps = program_.name.starts_with("step") && role_.scalars >= 0;
  if (steps && scalar_updates_ != 1)
    report_(last, "ends a step that has updated its scalars " + std::to_string(scalar_updates_) + " times");
  for (std::size_t index = 0; index < role_.units.size(); ++index) {
    const Unit& unit = role_.units[index];
    const UnitRecord& record = units_[index];
    if (steps && record.updates != 1)
      report_(last, "ends a step that has updated " + unit.name + " " + std::to_string(record.updates) + " times");
    if (plan_.drifts && renews_ && program_.name != "refresh" && record.master < 0)
      report_(last, "ends without bringing " + unit.name + " together");
    if (record.master < 0 && !renews_) continue;
    std::int32_t newest = record.master;
    if (!(unit.working_slice == unit.master)) {
      if (record.slice < std::max(newest, 0))
        report_(last, "ends with a working copy of " + unit.name + " that is older than its master weights");
      newest = std::max(newest, record.slice);
    }
    if (unit.sharded() && unit.working >= 0) {
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
  if (facts.on(Axis::shard).is(Kind::slice)) facts.on(Axis::shard).base += begin;
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
    if (meets(unit.master)) record.master = static_cast<std::int32_t>(i);
    if (meets(unit.working_slice)) record.slice = static_cast<std::int32_t>(i);
    if (region.buffer == unit.working) record.working = static_cast<std::int32_t>(i);
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

// ---- Launches --------------------------------------------------------------------------------------------------------

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
  const std::string& field = role_.fields[static_cast<std::size_t>(copy.field)].name;
  Facts facts = Facts::all(Way::same(), std::nullopt);
  if (field != "lr" && field != "step") {
    facts.on(Axis::pipeline) = Way::piece();
    for (Axis axis : kDataAxes) facts.on(axis) = Way::cut(0);
  }
  write(i, copy.region.region, facts);
}

void Flow::copy_out(std::size_t i, const CopyOut& copy) {
  const std::string& field = role_.fields[static_cast<std::size_t>(copy.field)].name;
  if (field == "metrics" || field == "evaluation")
    need_same(i, copy.region.region, "reports what is");
  else
    uniform(i, copy.region.region);
}

void Flow::launch(std::size_t i, const Launch& launch) {
  const Signature& signature = role_.signatures[static_cast<std::size_t>(launch.signature)];
  for (const Operand& operand : launch.operands) {
    const std::int32_t micro_batch = role_.buffer(region_of(operand).buffer).micro_batch;
    if (launch.micro_batch >= 0 && micro_batch >= 0 && micro_batch != launch.micro_batch)
      report_(i, "touches micro-batch " + std::to_string(micro_batch));
  }
  switch (signature.op) {
    case Op::zero:
      return write(i, region_of(launch.operands[0]), Facts::all(Way::zero(), std::nullopt));
    case Op::cast:
    case Op::pack_weight:
      return copy(i, launch, signature);
    case Op::add:
      return add(i, launch, signature);
    case Op::sum_squares:
      return sum_squares(i, launch, signature);
    case Op::loss_seed:
      return seed(i, launch);
    case Op::update_scalars:
      return update_scalars(i, launch);
    case Op::scale:
      return scale(i, launch, signature);
    case Op::outer_step:
    case Op::apply_delayed:
      return averaged(i, launch, signature);
    case Op::compress_bf16:
    case Op::quantize_int8:
    case Op::top_k_compress:
      return compress(i, launch, signature);
    case Op::dequantize_int8:
    case Op::dequantize_sum_int8:
    case Op::top_k_sum:
      return decompress(i, launch, signature);
    default:
      break;
  }
  if (is_optimizer(signature.op)) return optimizer(i, launch, signature);
  graph_op(i, launch, signature);
}

void Flow::graph_op(std::size_t i, const Launch& launch, const Signature& signature) {
  std::size_t num_inputs = 0;
  std::vector<Facts>&inputs = inputs_, &outputs = outputs_;
  inputs.clear();
  outputs.clear();
  while (num_inputs < launch.operands.size() && access_of(launch.operands[num_inputs]) == Access::read)
    inputs.push_back(uniform(i, region_of(launch.operands[num_inputs++])));
  for (std::size_t operand = num_inputs; operand < launch.operands.size(); ++operand)
    outputs.push_back(Facts::all(Way::same(), signature.operands[operand].dtype));
  for (Axis axis : kAxes) {
    if (!active(axis)) continue;
    std::vector<Way>& ways = ways_;
    ways.clear();
    for (const Facts& input : inputs) ways.push_back(input.on(axis));
    if (axis == Axis::pipeline) {
      const bool same = std::all_of(ways.begin(), ways.end(), [](const Way& way) { return way.is(Kind::same) || way.is(Kind::zero); });
      for (Facts& output : outputs) output.on(axis) = same ? Way::same() : Way::piece();
      continue;
    }
    const WayRules::Answer& answer = rules_.apply(launch.signature, ways, outputs.size(), launch.origin.per[index_of(axis)] != 0);
    if (!answer) {
      std::string how;
      bool known = true;
      for (const Way& way : ways) {
        how += (how.empty() ? "" : ", ") + describe(way);
        known = known && !way.is(Kind::unknown);
      }
      if (known) mix(i, axis, "cannot work on what is (" + how + ")");
    }
    for (std::size_t output = 0; output < outputs.size(); ++output) outputs[output].on(axis) = answer ? (*answer)[output] : Way{};
  }
  for (std::size_t output = 0; output < outputs.size(); ++output) {
    const Operand& operand = launch.operands[num_inputs + output];
    if (access_of(operand) == Access::update) {
      const Facts before = uniform(i, region_of(operand));
      for (Axis axis : kAxes) {
        if (!active(axis)) continue;
        const Way sum = merged(before.on(axis), outputs[output].on(axis));
        if (sum.is(Kind::unknown) && !before.on(axis).is(Kind::unknown) && !outputs[output].on(axis).is(Kind::unknown))
          mix(i, axis, "adds what is " + describe(outputs[output].on(axis)) + " to what is " + describe(before.on(axis)));
        outputs[output].on(axis) = sum;
      }
    }
    write(i, region_of(operand), outputs[output]);
  }
}

// The same elements in another dtype or layout.
void Flow::copy(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region &from = region_of(launch.operands[0]), &to = region_of(launch.operands[1]);
  const DType dtype = signature.operands[1].dtype;
  if (signature.op == Op::pack_weight) {
    Facts facts = uniform(i, from);
    facts.dtype = dtype;
    return write(i, to, facts);
  }
  const std::int64_t in = size_of(signature.operands[0].dtype), out = size_of(dtype);
  FactRanges pieces = read(i, from);
  for (FactRange& piece : pieces) {
    piece.first = piece.first / in * out;
    piece.last = piece.last / in * out;
    if (piece.facts.on(Axis::shard).is(Kind::slice)) piece.facts.on(Axis::shard).base = piece.facts.on(Axis::shard).base / in * out;
    if (piece.facts.dtype) piece.facts.dtype = dtype;
  }
  write(i, to, pieces);
}

// Two slices of sums that have their zeros in different places become slices of one layout.
void Flow::unite(Facts& a, Facts& b) {
  const Way &left = a.on(Axis::tensor), &right = b.on(Axis::tensor);
  if (!left.is(Kind::slice) || !right.is(Kind::slice) || left.index == right.index) return;
  const auto both = merged(tables_.layouts[static_cast<std::size_t>(left.index)], tables_.layouts[static_cast<std::size_t>(right.index)]);
  if (!both) return;
  const std::int32_t index = tables_.index_of(*both);
  for (Facts* facts : {&a, &b})
    for (Axis axis : {Axis::shard, Axis::tensor})
      if (facts->on(axis).is(Kind::slice)) facts->on(axis).index = index;
}

// Of flat buffers, element by element; of values of a graph by their rule.
void Flow::add(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region &a = region_of(launch.operands[0]), &b = region_of(launch.operands[1]);
  if (launch.micro_batch >= 0 || a.bytes != b.bytes) return graph_op(i, launch, signature);
  const FactRanges left = read(i, a), right = read(i, b);
  AddressMap<Facts> sum;
  for (const FactRange& piece : left) sum.assign(piece.first, piece.last, piece.facts);
  for (const FactRange& piece : right)
    sum.update(piece.first, piece.last, [&](Facts& facts) {
      Facts added = piece.facts;
      unite(facts, added);
      for (Axis axis : kAxes) {
        if (!active(axis)) continue;
        const Way both = merged(facts.on(axis), added.on(axis));
        if (both.is(Kind::unknown))
          mix(i, axis, "adds what is " + describe(piece.facts.on(axis)) + " to what is " + describe(facts.on(axis)));
        facts.on(axis) = both;
      }
    });
  FactRanges result;
  sum.update_pieces(0, a.bytes, [&](std::int64_t first, std::int64_t last, const Facts& facts) { result.push_back({first, last, facts}); });
  write(i, region_of(launch.operands[2]), result);
}

// Squares are of whole sums; every element is to count once.
void Flow::sum_squares(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region& region = region_of(launch.operands[0]);
  const std::int64_t width = size_of(signature.operands[0].dtype), elements = region.bytes / width;
  const std::int64_t first = signature.attributes.integer("first", 0), last = signature.attributes.integer("last", std::int64_t{1} << 62);
  const double scale = real_or_one(signature, "scale");
  const FactRanges pieces = read(i, region);
  Facts result = Facts::all(Way::same(), DType::f64);
  if (active(Axis::pipeline)) result.on(Axis::pipeline) = Way::piece();
  const auto counted = [&](std::int64_t from, std::int64_t to, const Way& way) {
    if (!active(Axis::tensor) || std::max(from, first) >= std::min(to, last) || way.is(Kind::zero)) return;
    const bool once = way.is(Kind::same) ? is_one(scale * plan_.mesh.size(Axis::tensor)) : way.is(Kind::cut) && is_one(scale);
    if (!once) mix(i, Axis::tensor, "does not count once what is " + describe(way));
  };
  if (active(Axis::tensor))
    result.on(Axis::tensor) = Way::partial();
  else if (!is_one(scale))
    report_(i, "does not count its elements once");
  for (Axis axis : kDataAxes) {
    if (!active(axis)) continue;
    Way way = Way::zero();
    for (const FactRange& piece : pieces) way = merged(way, piece.facts.on(axis));
    const bool slice = axis == Axis::shard && way.is(Kind::slice) && way.base == 0 && launch.origin.per[index_of(axis)] == elements;
    if (slice)
      result.on(axis) = Way::partial();
    else if (way.is(Kind::partial) && drifting(axis))
      result.on(axis) = {Kind::drift};
    else if (!way.is(Kind::same) && !way.is(Kind::zero))
      mix(i, axis, "sums squares of what is " + describe(way)), result.on(axis) = {};
  }
  for (const FactRange& piece : pieces) {
    const Way& tensor = piece.facts.on(Axis::tensor);
    if (!tensor.is(Kind::slice))
      counted(piece.first / width, piece.last / width, tensor);
    else
      for (const LayoutEntry& entry : tables_.layouts[static_cast<std::size_t>(tensor.index)])
        counted(entry.first, entry.last, entry.tensor);
  }
  const Operand& squares = launch.operands[1];
  if (access_of(squares) == Access::update) {
    const Facts before = uniform(i, region_of(squares));
    for (Axis axis : kAxes) result.on(axis) = merged(before.on(axis), result.on(axis));
  }
  write(i, region_of(squares), result);
}

// The mean is over all ranks' targets; of ranks that train apart, over their own.
void Flow::seed(std::size_t i, const Launch& launch) {
  const Facts count = uniform(i, region_of(launch.operands[0]));
  need_same(i, region_of(launch.operands[1]), "takes scalars that are");
  Facts result = Facts::all(Way::same(), DType::f32);
  for (Axis axis : kAxes) {
    const Way& way = count.on(axis);
    if (!active(axis) || way.is(Kind::zero) || way.is(drifting(axis) ? Kind::partial : Kind::same)) continue;
    if (axis == Axis::pipeline)
      result.on(axis) = Way::piece();
    else
      mix(i, axis, "takes a count that is " + describe(way));
  }
  write(i, region_of(launch.operands[2]), result);
}

void Flow::update_scalars(std::size_t i, const Launch& launch) {
  static constexpr std::array kWhat{"takes a norm that is", "takes a loss that is", "takes a count that is", "takes scalars that are",
                                    "takes a count of updates that is"};
  for (std::size_t operand = 0; operand < kWhat.size(); ++operand) need_same(i, region_of(launch.operands[operand]), kWhat[operand]);
  write(i, region_of(launch.operands[3]), Facts::all(Way::same(), DType::f32));
  write(i, region_of(launch.operands[4]), Facts::all(Way::same(), DType::i32));
  ++scalar_updates_;
}

void Flow::optimizer(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region &master = region_of(launch.operands[0]), &gradient = region_of(launch.operands[1]);
  const auto unit = std::find_if(role_.units.begin(), role_.units.end(), [&](const Unit& one) { return one.master == master; });
  if (unit == role_.units.end()) return report_(i, "updates what is no unit's master weights");
  const auto index = static_cast<std::size_t>(unit - role_.units.begin());
  const std::int64_t elements = unit->slice(), width = size_of(signature.operands[1].dtype);
  const FlatLayout& layout = tables_.layouts[static_cast<std::size_t>(unit_layouts_[index])];
  const bool sharded = unit->sharded();
  const auto demand = [&](Axis axis, bool holds, const Way& way) {
    if (!holds && active(axis)) mix(i, axis, "updates " + unit->name + " with gradients that are " + describe(way));
  };
  for (const FactRange& piece : read(i, gradient)) {
    const Facts& facts = piece.facts;
    if (facts.dtype && facts.dtype != signature.operands[1].dtype) report_(i, "reads gradients of another dtype");
    demand(Axis::pipeline, fits(stages_way(unit->stages), facts.on(Axis::pipeline)), facts.on(Axis::pipeline));
    if (!drifting(Axis::replicate)) demand(Axis::replicate, fits(Way::same(), facts.on(Axis::replicate)), facts.on(Axis::replicate));
    const Way &shard = facts.on(Axis::shard), &tensor = facts.on(Axis::tensor);
    if (sharded) {
      const bool mine = shard.is(Kind::zero) ||
                        (shard.is(Kind::slice) && shard.base == 0 && fits(layout, tables_.layouts[static_cast<std::size_t>(shard.index)]));
      demand(Axis::shard, mine, shard);
      demand(Axis::tensor, tensor.is(Kind::zero) || tensor.is(Kind::slice), tensor);
      continue;
    }
    if (!drifting(Axis::shard)) demand(Axis::shard, fits(Way::same(), shard), shard);
    for (const LayoutEntry& entry : layout)
      if (std::max(piece.first / width, entry.first) < std::min(piece.last / width, entry.last))
        demand(Axis::tensor, fits(entry.tensor, tensor), tensor);
  }
  if (active(Axis::shard) && launch.origin.per[index_of(Axis::shard)] != (sharded ? elements : 0))
    report_(i, "takes another slice than its own");
  std::size_t operand = 2;
  for (; operand < launch.operands.size() && access_of(launch.operands[operand]) == Access::update; ++operand) {
    const Region& state = region_of(launch.operands[operand]);
    if (operand - 2 >= unit->states.size() || unit->states[operand - 2] != state.buffer)
      report_(i, "updates states that are not those of " + unit->name);
    note_write(i, state);
  }
  for (; operand < launch.operands.size() && access_of(launch.operands[operand]) == Access::read; ++operand)
    need_same(i, region_of(launch.operands[operand]), "takes a scalar that is");
  Facts facts = Facts::all(Way::same(), DType::f32);
  facts.on(Axis::pipeline) = stages_way(unit->stages);
  const auto updated = [&](const Region& region, DType dtype) {
    FactRanges pieces;
    facts.dtype = dtype;
    if (sharded) {
      facts.on(Axis::shard) = facts.on(Axis::tensor) = {Kind::slice, 0, 1, unit_layouts_[index]};
      pieces.push_back({0, region.bytes, facts});
    } else {
      for (const LayoutEntry& entry : layout) {
        facts.on(Axis::tensor) = entry.tensor;
        pieces.push_back({entry.first * size_of(dtype), entry.last * size_of(dtype), facts});
      }
    }
    write(i, region, pieces);
  };
  updated(master, DType::f32);
  if (operand < launch.operands.size()) {
    const Region& working = region_of(launch.operands[operand]);
    if (!(working == unit->working_slice)) report_(i, "writes what is not the working copy of " + unit->name);
    updated(working, unit->compute);
  }
  ++units_[index].updates;
}

// ---- Averaging -------------------------------------------------------------------------------------------------------

void Flow::scale(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region& region = region_of(launch.operands[0]);
  FactRanges pieces = read(i, region);
  for (FactRange& piece : pieces) {
    int ranks = 1;
    for (Axis axis : kDataAxes) {
      if (!active(axis)) continue;
      Way& way = piece.facts.on(axis);
      if (way.is(Kind::drift)) mix(i, axis, "scales what is " + describe(way));
      if (!way.is(Kind::drift_sum)) continue;
      ranks *= plan_.mesh.size(axis);
      way = Way::same();
    }
    if (ranks > 1 && !is_one(real_or_one(signature, "factor") * ranks)) report_(i, "makes no mean of " + std::to_string(ranks) + " ranks");
  }
  write(i, region, pieces);
}

// outer_step, apply_delayed: the last operand that is read is the sum over the ranks.
void Flow::averaged(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region& average = region_of(launch.operands[2]);
  FactRanges pieces = read(i, average);
  int ranks = 1;
  for (Axis axis : kDataAxes) ranks *= plan_.mesh.size(axis);
  if (!is_one(real_or_one(signature, "factor") * ranks)) report_(i, "makes no mean of " + std::to_string(ranks) + " ranks");
  for (FactRange& piece : pieces)
    for (Axis axis : kDataAxes) {
      if (!active(axis)) continue;
      Way& way = piece.facts.on(axis);
      if (!way.is(Kind::drift_sum)) mix(i, axis, "takes for a sum what is " + describe(way));
      way = Way::same();
    }
  for (const Operand& operand : launch.operands)
    if (access_of(operand) == Access::read) read(i, region_of(operand));
  for (const Operand& operand : launch.operands)
    if (access_of(operand) != Access::read) write(i, region_of(operand), pieces);
}

// ---- Compression -----------------------------------------------------------------------------------------------------

// Gradient, residual → packet. bf16 keeps its elements; the others are each rank's own, to be understood together.
void Flow::compress(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region &gradient = region_of(launch.operands[0]), &packet = region_of(launch.operands[2]);
  const std::int64_t width = size_of(signature.operands[0].dtype);
  FactRanges pieces = read(i, gradient);
  if (signature.op == Op::compress_bf16) {
    for (FactRange& piece : pieces) {
      piece.first = piece.first / width * size_of(DType::bf16);
      piece.last = piece.last / width * size_of(DType::bf16);
      piece.facts.dtype = DType::bf16;
    }
    return write(i, packet, pieces);
  }
  FlatLayout layout;
  Facts facts = pieces.empty() ? Facts{} : pieces.front().facts;
  for (const FactRange& piece : pieces) {
    append(layout, {piece.first / width, piece.last / width, piece.facts.on(Axis::tensor)});
    facts = merged(facts, piece.facts);
  }
  facts.dtype = signature.operands[2].dtype;
  const bool again = layout.size() == 1 && layout[0].tensor.is(Kind::slice);
  facts.on(Axis::tensor) = {Kind::slice, 0, 1, again ? layout[0].tensor.index : tables_.index_of(layout)};
  for (Axis axis : kDataAxes)
    if (Way& way = facts.on(axis); way.is(Kind::partial) || way.is(Kind::slice)) way = Way::piece();
  write(i, packet, facts);
}

void Flow::decompress(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region& to = region_of(launch.operands[1]);
  Facts facts = uniform(i, region_of(launch.operands[0]));
  const Way tensor = facts.on(Axis::tensor);
  facts.dtype = signature.operands[1].dtype;
  if (!tensor.is(Kind::slice)) return report_(i, "decompresses what is no compressed gradient");
  if (signature.op == Op::dequantize_sum_int8) {
    const bool sharded = facts.on(Axis::shard).is(Kind::piece) && !facts.on(Axis::replicate).is(Kind::piece);
    if (sharded && active(Axis::shard)) facts.on(Axis::shard) = {Kind::slice, 0, 1, tensor.index};
    return write(i, to, facts);
  }
  for (Axis axis : kDataAxes)
    if (active(axis) && facts.on(axis).is(Kind::piece)) mix(i, axis, "decompresses what is not gathered");
  FactRanges pieces;
  for (const LayoutEntry& entry : tables_.layouts[static_cast<std::size_t>(tensor.index)]) {
    facts.on(Axis::tensor) = entry.tensor;
    pieces.push_back({entry.first * size_of(*facts.dtype), entry.last * size_of(*facts.dtype), facts});
  }
  if (pieces.back().last != to.bytes) report_(i, "decompresses another number of elements");
  write(i, to, pieces);
}

// ---- Collectives -----------------------------------------------------------------------------------------------------

void Flow::collective(std::size_t i, const Collective& collective) {
  for (const FactRange& piece : read(i, collective.input.region))
    if (piece.facts.dtype && piece.facts.dtype != collective.dtype) {
      report_(i, "moves as " + std::string(name_of(collective.dtype)) + " what is " + std::string(name_of(*piece.facts.dtype)));
      break;
    }
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
      return all_reduce(i, collective);
    case CollectiveKind::reduce_scatter:
      return reduce_scatter(i, collective);
    case CollectiveKind::all_gather:
      return all_gather(i, collective);
    case CollectiveKind::all_to_all: {
      const Facts facts = uniform(i, collective.input.region);
      for (Axis axis : kAxes)
        if (collective.axes.has(axis) && active(axis) && !facts.on(axis).is(Kind::piece))
          mix(i, axis, "exchanges what is " + describe(facts.on(axis)));
      return write(i, collective.output.region, facts);
    }
    case CollectiveKind::broadcast:
      report_(i, "overwrites what the other ranks have");
      return write(i, collective.output.region, read(i, collective.input.region));
  }
}

void Flow::all_reduce(std::size_t i, const Collective& collective) {
  FactRanges pieces = read(i, collective.input.region);
  for (Axis axis : kAxes) {
    if (!collective.axes.has(axis) || !active(axis)) continue;
    bool told = false;
    for (FactRange& piece : pieces) {
      Way& way = piece.facts.on(axis);
      if (way.is(Kind::partial))
        way = Way::same();
      else if (way.is(Kind::drift))
        way = {Kind::drift_sum};
      else if (!way.is(Kind::zero)) {
        if (!told) mix(i, axis, "sums what is " + describe(way));
        told = true;
        way = {};
      }
    }
  }
  write(i, collective.output.region, pieces);
}

void Flow::reduce_over_stages(std::size_t i, const Collective& collective, const FactRanges& found) {
  FactRanges pieces = found;
  for (FactRange& piece : pieces) {
    piece.facts.dtype = collective.dtype;
    for (Axis axis : kAxes) {
      if (!collective.axes.has(axis) || !active(axis)) continue;
      Way& way = piece.facts.on(axis);
      const bool sums = axis == Axis::pipeline ? way.is(Kind::piece) : way.is(Kind::partial);
      if (!sums && !way.is(Kind::zero)) mix(i, axis, "sums what is " + describe(way));
      way = axis == Axis::pipeline
                ? stages_way(collective.stages.empty() ? std::vector<std::int32_t>(static_cast<std::size_t>(plan_.mesh.size(axis)))
                                                       : collective.stages)
                : Way::same();
    }
  }
  write(i, collective.output.region, pieces);
}

// In one buffer a rank's slice lies at its own place; else the two keep clear of each other.
bool Flow::own_place(const Collective& collective, const Region& slice, const Region& whole) const {
  if (whole.per_shard != 0) return false;
  if (slice.buffer != whole.buffer) return true;
  return collective.axes == Axes::of(Axis::shard) && slice.offset == whole.offset && slice.per_shard == slice.bytes;
}

void Flow::reduce_scatter(std::size_t i, const Collective& collective) {
  const Region &whole = collective.input.region, &slice = collective.output.region;
  if (!own_place(collective, slice, whole)) return report_(i, "puts a slice where it does not belong");
  FactRanges pieces = read(i, whole);
  Facts facts = pieces.empty() ? Facts{} : pieces.front().facts;
  FlatLayout layout;
  const std::int64_t width = size_of(collective.dtype);
  for (const FactRange& piece : pieces) {
    append(layout, {piece.first / width, piece.last / width, piece.facts.on(Axis::tensor)});
    facts = merged(facts, piece.facts);
  }
  facts.dtype = collective.dtype;
  for (Axis axis : kAxes) {
    if (!collective.axes.has(axis) || !active(axis)) continue;
    for (const FactRange& piece : pieces)
      if (const Way& way = piece.facts.on(axis); !way.is(Kind::partial) && !way.is(Kind::zero)) {
        mix(i, axis, "sums what is " + describe(way));
        break;
      }
    if (axis == Axis::shard)
      facts.on(Axis::shard) = facts.on(Axis::tensor) = {Kind::slice, 0, 1, tables_.index_of(layout)};
    else if (axis == Axis::tensor)
      facts.on(axis) = Way::cut(0);
    else
      mix(i, axis, "leaves slices of which nothing is known");
  }
  write(i, slice, facts);
}

void Flow::all_gather(std::size_t i, const Collective& collective) {
  const Region &slice = collective.input.region, &whole = collective.output.region;
  if (!own_place(collective, slice, whole)) return report_(i, "takes a slice from where it does not belong");
  Facts facts = uniform(i, slice);
  const FlatLayout* layout = nullptr;
  for (Axis axis : kAxes) {
    if (!collective.axes.has(axis) || !active(axis)) continue;
    Way& way = facts.on(axis);
    const bool rows = axis == Axis::tensor && way.is(Kind::cut) && way.dim == 0 && way.parts == 1;
    if (axis == Axis::shard && way.is(Kind::slice) && way.base == 0)
      layout = &tables_.layouts[static_cast<std::size_t>(way.index)];
    else if (!way.is(Kind::piece) && !rows)
      mix(i, axis, "gathers what is " + describe(way));
    if (axis == Axis::tensor && way.is(Kind::piece))  // stacked: what was cut by rows has them behind the new dim
      for (Axis data : kDataAxes)
        if (Way& cut = facts.on(data); cut.is(Kind::cut) && cut.dim == 0) cut.dim = 1;
    way = Way::same();
  }
  if (layout == nullptr) return write(i, whole, facts);
  FactRanges pieces;
  const std::int64_t width = size_of(collective.dtype);
  for (const LayoutEntry& entry : *layout) {
    facts.on(Axis::tensor) = entry.tensor;
    pieces.push_back({entry.first * width, entry.last * width, facts});
  }
  if (pieces.back().last != whole.bytes) report_(i, "gathers another number of elements than the slices are of");
  write(i, whole, pieces);
}

}  // namespace trainer
