// Why each instruction is there, of all golden jobs: held against the schedule, the units' buffers and the names, none
// of which it is read from.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "tests/plan/golden_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

using Phase = Provenance::Phase;

Phase phase_of(Action::Kind kind) {
  switch (kind) {
    case Action::Kind::forward:
      return Phase::forward;
    case Action::Kind::backward:
      return Phase::backward;
    case Action::Kind::backward_input:
      return Phase::backward_input;
    case Action::Kind::backward_weight:
      return Phase::backward_weight;
  }
  return Phase::load;
}

using Pass = std::tuple<Phase, std::int32_t, std::int32_t>;  // micro-batch, chunk

template <typename Visit>
void for_each_job(const Visit& visit) {
  for (const GoldenJob& job : golden_jobs()) {
    CAPTURE(job.name);
    visit(golden_compiled(job));
  }
}

// A name of an instruction about a unit begins with the unit's name, or is that of one of its tensors.
bool is_named_for(const Unit& unit, const std::string& name) {
  if (name == unit.name || name.starts_with(unit.name + ".")) return true;
  return std::any_of(unit.tensors.begin(), unit.tensors.end(),
                     [&](const UnitTensor& tensor) { return tensor.name == name; });
}

const std::string* name_of_instruction(const Role& role, const Instruction& instruction) {
  if (const auto* launch = std::get_if<Launch>(&instruction)) return &role.name(launch->name);
  if (const auto* collective = std::get_if<Collective>(&instruction)) return &role.name(collective->name);
  if (const auto* move = std::get_if<Move>(&instruction)) return &role.name(move->name);
  return nullptr;
}

}  // namespace

TEST_CASE("passes are the schedule's actions, in its order, and each node of one is issued once") {
  for_each_job([](const CompiledJob& compiled) {
    for (std::size_t stage = 0; stage < compiled.plan.roles.size(); ++stage) {
      const Program* step = compiled.plan.roles[stage].program(ProgramKind::step);
      if (step == nullptr) continue;
      std::vector<Pass> passes, actions;
      std::map<Pass, std::set<std::int32_t>> nodes;
      for (const Action& action : compiled.schedule.stages[stage])
        actions.emplace_back(phase_of(action.kind), action.micro_batch, action.chunk);
      for (const Issued& issued : step->instructions) {
        const Provenance& why = issued.why;
        CHECK((why.node >= 0) == is_pass(why.phase));
        if (!is_pass(why.phase)) continue;
        const Pass pass{why.phase, why.micro_batch, why.chunk};
        if (passes.empty() || passes.back() != pass) passes.push_back(pass);
        nodes[pass].insert(why.node);
      }
      // An action of which nothing is left to launch is not seen.
      std::vector<Pass> seen;
      std::copy_if(actions.begin(), actions.end(), std::back_inserter(seen),
                   [&](const Pass& pass) { return nodes.contains(pass); });
      CHECK(passes == seen);
      // Every micro-batch runs the same nodes.
      std::map<std::pair<Phase, std::int32_t>, std::set<std::int32_t>> of_chunk;
      for (const auto& [pass, ids] : nodes)
        CHECK(of_chunk.try_emplace({std::get<0>(pass), std::get<2>(pass)}, ids).first->second == ids);
    }
  });
}

TEST_CASE("what is about a unit says which") {
  int gathers = 0, reductions = 0, updates = 0, averages = 0;
  for_each_job([&](const CompiledJob& compiled) {
    for (const Role& role : compiled.plan.roles) {
      for (const Program& program : role.programs)
        for (const Issued& issued : program.instructions) {
          const Provenance& why = issued.why;
          const std::string* name = name_of_instruction(role, issued.instruction);
          const bool communicates = std::holds_alternative<Collective>(issued.instruction);
          if (why.phase == Phase::gather || why.phase == Phase::reduce) REQUIRE(why.unit >= 0);
          if (why.unit < 0) continue;
          REQUIRE(static_cast<std::size_t>(why.unit) < role.units.size());
          const Unit& unit = role.units[static_cast<std::size_t>(why.unit)];
          REQUIRE(name != nullptr);
          CAPTURE(*name);
          CHECK(is_named_for(unit, *name));
          gathers += why.phase == Phase::gather && communicates ? 1 : 0;
          reductions += why.phase == Phase::reduce && communicates ? 1 : 0;
          averages += why.phase == Phase::average && communicates ? 1 : 0;
        }
      const Program* step = role.program(ProgramKind::step);
      if (step == nullptr) continue;
      for (std::size_t unit = 0; unit < role.units.size(); ++unit) {
        const auto renews = [&](const Issued& issued) {
          const auto* launch = std::get_if<Launch>(&issued.instruction);
          const auto* move = std::get_if<Move>(&issued.instruction);
          const Region& master = role.units[unit].parameters().region;
          const bool here = launch != nullptr && access_of(launch->operands[0]) == Access::update &&
                            region_of(launch->operands[0]) == master,
                     brought_back = move != nullptr && move->to.region == master;
          return issued.why.phase == Phase::update && issued.why.unit == static_cast<std::int32_t>(unit) &&
                 (here || brought_back);
        };
        CHECK(std::count_if(step->instructions.begin(), step->instructions.end(), renews) == 1);
        ++updates;
      }
    }
  });
  CHECK(gathers > 0);
  CHECK(reductions > 0);
  CHECK(updates > 0);
  CHECK(averages > 0);
}

TEST_CASE("kernels of other ops are for what their phase says, and messages for the values they carry") {
  const std::map<Phase, std::set<Op>> ops{
      {Phase::load, {Op::cross_entropy_count, Op::mse_count, Op::zero, Op::loss_seed}},
      {Phase::norm, {Op::sum_squares, Op::zero}},
      {Phase::report,
       {Op::zero, Op::cross_entropy_count, Op::mse_count, Op::correct_count, Op::correct_count_gathered}},
  };
  int carried = 0, recomputed = 0;
  for_each_job([&](const CompiledJob& compiled) {
    for (const Role& role : compiled.plan.roles)
      for (const Program& program : role.programs)
        for (const Issued& issued : program.instructions) {
          const Provenance& why = issued.why;
          const auto* exchange = std::get_if<Exchange>(&issued.instruction);
          CHECK((exchange != nullptr) == (why.phase == Phase::transfer));
          recomputed += why.recomputed ? 1 : 0;
          CHECK((!why.recomputed || why.phase == Phase::backward || why.phase == Phase::backward_input));
          if (const auto* launch = std::get_if<Launch>(&issued.instruction)) {
            const Op op = role.signatures[static_cast<std::size_t>(launch->signature)].op;
            CAPTURE(std::string(name_of(op)));
            CAPTURE(std::string(name_of(why.phase)));
            for (const auto& [phase, all] : ops)
              if (why.phase == phase) CHECK(all.contains(op));
            if (op == Op::sum_squares) CHECK(why.phase == Phase::norm);
            if (op == Op::update_scalars) CHECK(why.phase == Phase::update);
          }
          if (exchange == nullptr) continue;
          for (const Exchange::Receive& receive : exchange->receives) {
            CHECK(role.buffer(receive.region.region.buffer).micro_batch == receive.carried.micro_batch);
            ++carried;
          }
        }
  });
  CHECK(carried > 0);
  CHECK(recomputed > 0);
}
