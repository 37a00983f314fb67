// How facts are collected: one pass over the instructions of a step, by the unit of each.
#include "engine/report/units.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "engine/ops/op_def.h"

namespace trainer::report {
namespace {

std::string common_prefix(const Unit& unit) {
  std::string prefix = unit.tensors.front().name;
  for (const UnitTensor& tensor : unit.tensors)
    while (!prefix.empty() && !tensor.name.starts_with(prefix)) prefix.pop_back();
  prefix.resize(prefix.rfind('.') == std::string::npos ? 0 : prefix.rfind('.') + 1);
  return prefix;
}

std::string range_text(const Unit& unit) {
  return unit.tensors.front().name + " … " + unit.tensors.back().name.substr(common_prefix(unit).size());
}

// A unit that is shared by stages is one unit, and has one label in all of them.
void label(std::vector<UnitFacts>& all) {
  std::map<std::string, std::set<std::string>> first_tensors;  // of the units with that text
  for (UnitFacts& facts : all) {
    facts.label = tensors_text(*facts.unit);
    if (!facts.unit->tensors.empty()) first_tensors[facts.label].insert(facts.unit->tensors.front().name);
  }
  for (UnitFacts& facts : all)
    if (first_tensors[facts.label].size() > 1) facts.label = range_text(*facts.unit);
}

using Phase = Provenance::Phase;

class UnitReader {
 public:
  UnitReader(const Plan& plan, int stage)
      : plan_(plan), role_(plan.roles[static_cast<std::size_t>(stage)]), step_(role_.program(ProgramKind::step)) {
    for (std::size_t i = 0; i < role_.units.size(); ++i) {
      UnitFacts& facts = facts_.emplace_back();
      facts.stage = stage;
      facts.unit = &role_.units[i];
      facts.states_over = ratio(facts.unit->elements, facts.unit->slice());
      facts.weights_over =
          ratio(facts.unit->elements * size_of(facts.unit->compute), facts.unit->working().region.bytes);
    }
    collectives_.resize(facts_.size());
    reductions_.resize(facts_.size());
  }

  std::vector<UnitFacts> run() {
    if (step_ == nullptr) return std::move(facts_);
    find_lifetimes();
    for (std::size_t i = 0; i < step_->instructions.size(); ++i) {
      const Issued& issued = step_->instructions[i];
      if (issued.why.unit < 0) continue;
      const auto unit = static_cast<std::size_t>(issued.why.unit);
      if (const auto* collective = std::get_if<Collective>(&issued.instruction))
        read(unit, i, *collective, issued.why.phase);
      if (const auto* launch = std::get_if<Launch>(&issued.instruction)) read(unit, i, *launch, issued.why.phase);
    }
    for (std::size_t unit = 0; unit < facts_.size(); ++unit) finish(unit);
    return std::move(facts_);
  }

 private:
  struct Lifetime {
    std::int32_t first = -1, last = -1;
  };
  struct Reductions {
    std::int64_t scatters = 0, all_reduces = 0;
    std::int64_t packets = 0;  // compressed: of any one kind of collective
  };

  static int ratio(std::int64_t whole, std::int64_t part) { return part > 0 ? static_cast<int>(whole / part) : 1; }

  void find_lifetimes() {
    lifetimes_.resize(role_.buffers.size());
    for (std::size_t i = 0; i < step_->instructions.size(); ++i)
      for_each_access(step_->instructions[i].instruction, [&](Access, const Region& region) {
        Lifetime& lifetime = lifetimes_[static_cast<std::size_t>(region.buffer)];
        if (lifetime.first < 0) lifetime.first = static_cast<std::int32_t>(i);
        lifetime.last = static_cast<std::int32_t>(i);
      });
  }

  // From a gather into a part of a ring to the last access of it before the next.
  Lifetime lifetime_in_ring(std::size_t gather, const Region& out) const {
    Lifetime life{static_cast<std::int32_t>(gather), static_cast<std::int32_t>(gather)};
    const std::int64_t stride = role_.buffer(out.buffer).stride;
    for (std::size_t i = gather + 1; i < step_->instructions.size(); ++i) {
      bool again = false;
      for_each_access(step_->instructions[i].instruction, [&](Access access, const Region& region) {
        if (region.buffer != out.buffer || region.offset / stride != out.offset / stride) return;
        again = again || (access == Access::write && region == out);
        if (!again) life.last = static_cast<std::int32_t>(i);
      });
      if (again) break;
    }
    return life;
  }

  void read(std::size_t unit, std::size_t i, const Collective& collective, Phase phase) {
    const std::int64_t times = step_->times(i);
    const Buffer& input = role_.buffer(collective.input.region.buffer);
    const std::string axis = axes_text(plan_.mesh, collective.axes);
    if (axis.empty()) return;
    UnitCollective& one = collectives_[unit][{std::string(name_of(collective.kind)), axis}];
    one.collective = name_of(collective.kind);
    one.axis = axis;
    one.count += times;
    one.bytes += times * std::max(collective.input.region.bytes, collective.output.region.bytes);
    if (phase == Phase::reduce && !(collective.axes & kTokenAxes).empty()) {
      const bool compressed = input.category == Category::communication;
      if (!compressed && collective.kind == CollectiveKind::reduce_scatter) reductions_[unit].scatters += times;
      if (!compressed && collective.kind == CollectiveKind::all_reduce) reductions_[unit].all_reduces += times;
      if (compressed) reductions_[unit].packets = std::max(reductions_[unit].packets, one.count);
    }
    if (phase == Phase::gather) {
      facts_[unit].gathers += times;
      if (role_.buffer(collective.output.region.buffer).category != Category::communication)
        add_copy(unit, i, collective.output.region);
    }
  }

  // A gathered copy of the unit that instruction i makes.
  void add_copy(std::size_t unit, std::size_t i, const Region& out) {
    gathered_[facts_[unit].unit].push_back(role_.buffer(out.buffer).stride > 0
                                               ? lifetime_in_ring(i, out)
                                               : lifetimes_[static_cast<std::size_t>(out.buffer)]);
  }

  void read(std::size_t unit, std::size_t i, const Launch& launch, Phase phase) {
    UnitFacts& facts = facts_[unit];
    const Signature& signature = role_.signatures[static_cast<std::size_t>(launch.signature)];
    if (phase == Phase::gather && signature.op == Op::dequantize_int8)
      return add_copy(unit, i, region_of(launch.operands[1]));
    const std::optional<UpdateDef>& update = definition(signature.op).update;
    if (!update || !update->has(UpdateDef::Operand::gradient)) return;
    const auto at = std::ranges::find(update->operands, UpdateDef::Operand::gradient);
    const auto gradient = static_cast<std::size_t>(at - update->operands.begin());
    const std::int64_t whole = facts.unit->elements * size_of(signature.operands[gradient].dtype);
    facts.gradients_over = std::max(1, ratio(whole, role_.buffer(region_of(launch.operands[gradient]).buffer).bytes));
  }

  void finish(std::size_t unit) {
    UnitFacts& facts = facts_[unit];
    const Reductions& counted = reductions_[unit];
    facts.reductions = counted.scatters > 0 ? counted.scatters : std::max(counted.all_reduces, counted.packets);
    for (auto& [key, one] : collectives_[unit]) facts.collectives.push_back(std::move(one));
    facts.gathered_share = facts.weights_over == 1 ? 1 : share(gathered_[facts.unit]);
  }

  // Of the step's instructions those inside any of the lifetimes.
  double share(std::vector<Lifetime> lifetimes) const {
    std::sort(lifetimes.begin(), lifetimes.end(),
              [](const Lifetime& a, const Lifetime& b) { return a.first < b.first; });
    std::int64_t covered = 0;
    std::int32_t end = 0;
    for (const Lifetime& one : lifetimes) {
      for (std::int32_t i = std::max(one.first, end); i <= one.last; ++i)
        covered += step_->times(static_cast<std::size_t>(i));
      end = std::max(end, one.last + 1);
    }
    return static_cast<double>(covered) / static_cast<double>(step_->length());
  }

  const Plan& plan_;
  const Role& role_;
  const Program* step_;
  std::vector<UnitFacts> facts_;
  std::vector<Lifetime> lifetimes_;  // of each buffer in the step
  std::vector<std::map<std::pair<std::string, std::string>, UnitCollective>> collectives_;
  std::vector<Reductions> reductions_;
  std::unordered_map<const Unit*, std::vector<Lifetime>> gathered_;
};

}  // namespace

std::vector<UnitFacts> units_of(const Plan& plan) {
  std::vector<UnitFacts> all;
  for (std::size_t stage = 0; stage < plan.roles.size(); ++stage) {
    std::vector<UnitFacts> facts = UnitReader(plan, static_cast<int>(stage)).run();
    all.insert(all.end(), std::make_move_iterator(facts.begin()), std::make_move_iterator(facts.end()));
  }
  label(all);
  return all;
}

std::string tensors_text(const Unit& unit) {
  if (unit.tensors.empty()) return "";
  if (unit.tensors.size() == 1) return unit.tensors.front().name;
  const std::string prefix = common_prefix(unit);
  return prefix.empty() ? range_text(unit) : prefix + "*";
}

}  // namespace trainer::report
