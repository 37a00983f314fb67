// Mutants of updates: other units, pieces of matrices, other rates and owners are refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "engine/core/matrix_list.h"
#include "engine/ops/op_def.h"
#include "engine/plan/memory.h"
#include "engine/plan/verify/verify.h"
#include "tests/plan/proof_jobs.h"

namespace trainer::tests::proof_updates_test {
namespace {

/// Spoils one launch of a step that has several optimizers: what it reads, what it says of matrices and owners, whether
/// it is there at all. False: nothing changed.
bool change_update(Role& role, const Plan& plan, std::vector<Issued>& step, std::size_t at, Dice& dice,
                   std::string& what) {
  auto& launch = std::get<Launch>(step[at].instruction);
  Signature signature = role.signatures[static_cast<std::size_t>(launch.signature)];
  const auto put = [&] {
    role.signatures.push_back(signature);
    launch.signature = static_cast<std::int32_t>(role.signatures.size()) - 1;
  };
  const auto kind = dice.below(7);
  if (kind == 0) {
    what = "drop";
    step.erase(step.begin() + static_cast<std::ptrdiff_t>(at));
    return true;
  }
  if (kind == 1) {
    what = "duplicate";
    const Issued copy = step[at];
    step.insert(step.begin() + static_cast<std::ptrdiff_t>(at), copy);
    return true;
  }
  if (kind == 2) {
    what = "origin";
    const Axis axis = kAxes[dice.below(kAxes.size())];
    if (plan.mesh.size(axis) == 1 || signature.op == Op::muon_momentum) return false;  // its origin says nothing
    launch.origin.along(axis) += 1;
    return true;
  }
  if (kind == 3) {
    what = "rate";
    if (!definition(signature.op).update->has(UpdateDef::Operand::rate)) return false;
    for (Operand& operand : launch.operands)
      if (auto* read = std::get_if<Read>(&operand);
          read != nullptr && read->region.bytes == 4 && role.name(role.buffer(read->region.buffer).name) == "lr") {
        if (role.buffer(read->region.buffer).bytes == 4) return false;  // there is one
        read->region.offset = read->region.offset == 0 ? 4 : 0;
        return true;
      }
    return false;
  }
  if (signature.op != Op::muon_orthogonalize) return false;
  std::vector<OwnedMatrix> matrices = matrix_list(signature.attributes.text("matrices"));
  OwnedMatrix& one = matrices[dice.below(matrices.size())];
  if (kind == 4) {
    what = "matrix left out";
    matrices.erase(matrices.begin() + (&one - matrices.data()));
  } else if (kind == 5) {
    what = "shape of a matrix";
    if (one.rows == one.cols || one.rows % 2 != 0) return false;
    if (dice.below(2) == 0)
      std::swap(one.rows, one.cols);
    else
      one.rows /= 2, one.cols *= 2;
  } else {
    what = "owner or cut";
    if (dice.below(2) == 0)
      one.owner += plan.mesh.world_size();
    else
      one.cut = one.cut == OwnedMatrix::Cut::none   ? OwnedMatrix::Cut::rows
                : one.cut == OwnedMatrix::Cut::rows ? OwnedMatrix::Cut::columns
                                                    : OwnedMatrix::Cut::none;
  }
  signature.attributes.set("matrices", matrix_list_text(matrices));
  put();
  return true;
}

}  // namespace

TEST_CASE("whatever changes who orthogonalizes what, and by which rate it is taken, is refused") {
  const ProofJobs jobs;
  std::map<std::string, Tally> tallies;
  Dice dice(37);
  for (const ProofCase& one : muon_cases()) {
    const Plan right = jobs.plan(one.model, one.overrides, 1);
    REQUIRE(violations(right).empty());
    for (int mutant = 0; mutant < 60; ++mutant) {
      Plan plan = right;
      Role& role = plan.roles[dice.below(plan.roles.size())];
      std::vector<Issued>& step = role.programs[0].instructions;
      std::vector<std::size_t> updates;
      for (std::size_t i = 0; i < step.size(); ++i)
        if (const auto* launch = std::get_if<Launch>(&step[i].instruction)) {
          const Op op = role.signatures[static_cast<std::size_t>(launch->signature)].op;
          if (definition(op).update) updates.push_back(i);
        }
      std::string what;
      if (!change_update(role, plan, step, updates[dice.below(updates.size())], dice, what)) continue;
      derive_order(role, plan.mesh);
      CAPTURE(one.text());
      CAPTURE(what);
      judge(plan, tallies[what]);
    }
  }
  tell(tallies);
}

namespace {

Launch* launch_of(Issued& issued) { return std::get_if<Launch>(&issued.instruction); }

using Of = UpdateDef::Operand;

/// The launches of a step whose op has such an operand, and which of their operands it is.
std::vector<std::pair<std::size_t, std::size_t>> launches_with(const Role& role, Of of) {
  std::vector<std::pair<std::size_t, std::size_t>> found;
  const std::vector<Issued>& step = role.programs[0].instructions;
  for (std::size_t i = 0; i < step.size(); ++i) {
    const auto* launch = std::get_if<Launch>(&step[i].instruction);
    if (launch == nullptr) continue;
    const auto& update = definition(role.signatures[static_cast<std::size_t>(launch->signature)].op).update;
    if (!update || !update->has(of)) continue;
    found.emplace_back(i, std::ranges::find(update->operands, of) - update->operands.begin());
  }
  return found;
}

Region& region_in(Operand& operand) {
  return std::visit([](auto& access) -> Region& { return access.region; }, operand);
}

/// Two units that lie alike take each other's updates.
bool swap_updates(Role& role) {
  std::vector<Issued>& step = role.programs[0].instructions;
  const auto found = launches_with(role, Of::taken);
  for (const auto& [a, at] : found)
    for (const auto& [b, same] : found) {
      Launch &one = *launch_of(step[a]), &other = *launch_of(step[b]);
      if (a >= b || one.signature != other.signature) continue;
      std::swap(region_in(one.operands[at]), region_in(other.operands[at]));
      return true;
    }
  return false;
}

/// Each rank takes its piece of a matrix for all of it: nothing is gathered or summed along the tensor axis.
bool leave_in_pieces(Role& role, const Mesh& mesh) {
  std::vector<Issued>& step = role.programs[0].instructions;
  if (mesh.size(Axis::tensor) == 1) return false;
  std::map<BufferId, Region> pieces;  // of the buffers that hold all pieces
  std::vector<Issued> rest;
  for (const Issued& issued : step) {
    const auto* collective = std::get_if<Collective>(&issued.instruction);
    const bool updates = issued.why.phase == Provenance::Phase::update;
    const bool joins = updates && collective != nullptr && collective->axes == Axes::of(Axis::tensor);
    if (joins && collective->kind == CollectiveKind::all_gather)
      pieces[collective->output.region.buffer] = collective->input.region;
    if (!joins) rest.push_back(issued);
  }
  step = rest;
  for (const auto& [at, operand] : launches_with(role, Of::changed)) {
    Launch& launch = *launch_of(step[at]);
    const auto piece = pieces.find(region_in(launch.operands[operand]).buffer);
    if (piece == pieces.end()) continue;
    region_in(launch.operands[operand]) = piece->second;
    Signature signature = role.signatures[static_cast<std::size_t>(launch.signature)];
    signature.operands[operand].shape[0] = 1;
    Axes owners;
    for (Axis axis : mesh.active(kSliceAxes))
      if (launch.origin.along(axis) != 0) owners = owners | axis;
    std::vector<OwnedMatrix> matrices = matrix_list(signature.attributes.text("matrices"));
    for (OwnedMatrix& matrix : matrices) matrix.owner %= mesh.group_size(owners);
    signature.attributes.set("matrices", matrix_list_text(matrices));
    launch.origin = origin_over(owners, 1, mesh);
    launch.signature = static_cast<std::int32_t>(role.signatures.size());
    role.signatures.push_back(signature);
  }
  return !pieces.empty();
}

/// What is updated in place is said to be read only, so that nothing waits for it.
bool only_read(Role& role, Of of) {
  const auto found = launches_with(role, of);
  if (found.empty()) return false;
  Operand& operand = launch_of(role.programs[0].instructions[found.front().first])->operands[found.front().second];
  operand = Read{region_of(operand)};
  return true;
}

}  // namespace

TEST_CASE("updates of other units, of pieces of matrices, and such as nothing waits for are refused") {
  const ProofJobs jobs;
  std::map<std::string, Tally> tallies;
  const std::vector<std::pair<std::string, std::function<bool(Role&, const Mesh&)>>> mutations{
      {"update of another unit", [](Role& role, const Mesh&) { return swap_updates(role); }},
      {"pieces for matrices", leave_in_pieces},
      {"master only read", [](Role& role, const Mesh&) { return only_read(role, Of::master); }},
      {"states only read", [](Role& role, const Mesh&) { return only_read(role, Of::states); }},
      {"update only read", [](Role& role, const Mesh&) { return only_read(role, Of::changed); }},
  };
  for (const ProofCase& one : muon_cases()) {
    const Plan right = jobs.plan(one.model, one.overrides, 1);
    for (const auto& [name, mutate] : mutations) {
      Plan plan = right;
      int changed = 0;
      for (Role& role : plan.roles) changed += mutate(role, plan.mesh) ? 1 : 0;
      if (changed == 0) continue;
      for (Role& role : plan.roles) {
        plan_memory(role);
        derive_order(role, plan.mesh);
      }
      CAPTURE(one.text());
      CAPTURE(name);
      judge(plan, tallies[name]);
    }
  }
  CHECK(tallies.size() == mutations.size());
  tell(tallies);
}

}  // namespace trainer::tests::proof_updates_test
