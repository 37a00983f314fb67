// Mutants of specs and slots: whatever changes what a rank is said to hold is refused.
#include <doctest/doctest.h>

#include <map>

#include "tests/plan/proof_jobs.h"

namespace trainer::tests::proof_specs_test {
namespace {

/// The specs of a plan that say how something lies: of parameters, of slots that stay, and of what the batch brings.
std::vector<Spec*> specs_of(Plan& plan) {
  std::vector<Spec*> specs;
  for (Role& role : plan.roles) {
    for (Unit& unit : role.units) {
      for (UnitTensor& tensor : unit.tensors) specs.push_back(&tensor.spec);
      for (Slot& slot : unit.slots)
        if (slot.persistent) specs.push_back(&slot.spec);
    }
    for (Field& field : role.fields)
      if (field.kind == Field::Kind::batch) specs.push_back(&field.spec);
  }
  return specs;
}

/// A wrong cut, a cut too many or too few, a wrong partial axis, a wrong order of cuts, another dtype or shape. False:
/// nothing changed.
bool change_spec(Spec& spec, const Mesh& mesh, Dice& dice, std::string& what) {
  const Spec before = spec;
  std::vector<Axis> axes;
  for (Axis axis : kAxes)
    if (mesh.size(axis) > 1 && axis != Axis::pipeline) axes.push_back(axis);
  const Axis axis = axes[dice.below(axes.size())];
  const std::vector<Cut> cuts(spec.cuts().begin(), spec.cuts().end());
  const auto kind = dice.below(6);
  if (kind == 0) {
    what = "cut";
    const auto dim = static_cast<int>(dice.below(static_cast<std::size_t>(spec.whole.rank())));
    spec.place(axis, Placement::shard(dim, 1 + static_cast<int>(dice.below(3))));
  } else if (kind == 1) {
    what = "no cut";
    spec.place(axis, Placement::replicate());
  } else if (kind == 2) {
    what = "partial axis";
    spec.place(axis, Placement::partial());
  } else if (kind == 3) {
    what = "order of cuts";
    int several = 0;  // of more than one rank: the order of others says nothing
    for (const Cut& cut : cuts) several += mesh.size(cut.axis) > 1;
    if (several < 2) return false;
    for (const Cut& cut : cuts) spec.place(cut.axis, Placement::replicate());
    for (std::size_t i = cuts.size(); i-- > 0;) spec.place(cuts[i].axis, cuts[i].as);
  } else if (kind == 4) {
    what = "dtype";
    spec.format = spec.dtype() == DType::f32 ? DType::f64 : DType::f32;
  } else {
    what = "shape";
    spec.whole[static_cast<int>(dice.below(static_cast<std::size_t>(spec.whole.rank())))] +=
        1 + static_cast<std::int64_t>(dice.below(64)) * 64;
  }
  return !(spec == before);
}

}  // namespace

TEST_CASE("whatever changes what a rank is said to hold is refused") {
  const ProofJobs jobs;
  std::map<std::string, Tally> tallies;
  Dice dice(23);
  int plans = 0, mutants = 0;
  for (const ProofCase& one : all_cases()) {
    std::vector<std::string> overrides = one.overrides;
    overrides.emplace_back("data.val={fraction: 0.2}");
    const Plan right = jobs.plan(one.model, overrides, 1);
    if (right.mesh.world_size() == right.mesh.size(Axis::pipeline)) continue;
    ++plans;
    for (int mutant = 0; mutant < 24; ++mutant) {
      Plan plan = right;
      std::string what = "swapped slots";
      if (mutant % 8 == 0) {  // two slots of a unit, each in the place of the other
        Role& role = plan.roles[dice.below(plan.roles.size())];
        std::vector<Slot>& slots = role.units[dice.below(role.units.size())].slots;
        const std::size_t a = dice.below(slots.size()), b = dice.below(slots.size());
        if (slots[a].region == slots[b].region || !slots[a].persistent || !slots[b].persistent) continue;
        std::swap(slots[a].region, slots[b].region);
      } else {
        const std::vector<Spec*> specs = specs_of(plan);
        if (!change_spec(*specs[dice.below(specs.size())], plan.mesh, dice, what)) continue;
      }
      ++mutants;
      CAPTURE(one.text());
      CAPTURE(what);
      judge(plan, tallies[what]);
    }
  }
  tell(tallies);
  CHECK(plans >= 20);
  CHECK(mutants >= 200);
}

}  // namespace trainer::tests::proof_specs_test
