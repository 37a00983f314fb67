// Mutants of secondary copies of weights: each is named.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "engine/plan/verify/verify.h"
#include "tests/plan/proof_jobs.h"

namespace trainer::tests::proof_secondary_test {
namespace {

std::vector<ProofCase> cases() {
  return {{"llama", {ranks(4), "strategy={data: {kind: fsdp, secondary: 2}}", "precision.compute=bf16"}},
          {"gpt2", {ranks(8), "strategy={data: {kind: zero3, secondary: 4}}", "train.batch.micro=1"}},
          {"gpt2", {ranks(8), "strategy={data: {kind: fsdp, secondary: 2}, tensor: {degree: 2}}"}},
          {"llama", {ranks(4), "strategy={data: {kind: fsdp, secondary: 2, gather: int8}}"}},
          {"gpt2",
           {ranks(8), "strategy={data: {kind: fsdp, secondary: 2, reduce_dtype: int8}, pipeline: {degree: 2}}",
            "train.batch.micro=1"}}};
}

std::vector<Issued>& step_of(Role& role) { return role.programs[0].instructions; }

// The copy that keeps a rank's part of the first unit, its operands, and the first gather that begins there; null where
// there is none.
struct Kept {
  Launch* copy = nullptr;
  Collective* gather = nullptr;
};
Kept kept_of(Role& role) {
  Kept kept;
  for (Issued& issued : step_of(role)) {
    auto* launch = std::get_if<Launch>(&issued.instruction);
    if (launch != nullptr && kept.copy == nullptr && role.name(launch->name).ends_with(".secondary"))
      kept.copy = launch;
    auto* one = std::get_if<Collective>(&issued.instruction);
    if (one != nullptr && kept.copy != nullptr && kept.gather == nullptr &&
        one->input.region == region_of(kept.copy->operands[1]))
      kept.gather = one;
  }
  return kept;
}

template <typename Change>
bool with_source(Role& role, const Change& change) {
  const Kept kept = kept_of(role);
  if (kept.copy == nullptr) return false;
  change(std::get<Read>(kept.copy->operands[0]).region);
  return true;
}

struct Mutant {
  std::string name, said;
  std::function<bool(Role&)> apply;
};

const std::vector<Mutant>& mutants() {
  static const std::vector<Mutant> all{
      {"no part is kept", "reads bytes that nothing has written",
       [](Role& role) {
         const Launch* const copy = kept_of(role).copy;
         return copy != nullptr && std::erase_if(step_of(role), [&](const Issued& issued) {
                                     return std::get_if<Launch>(&issued.instruction) == copy;
                                   }) == 1;
       }},
      {"every rank keeps the first part", "gathers",
       [](Role& role) { return with_source(role, [](Region& part) { part.step = 0, part.over = {}; }); }},
      {"a rank keeps the part that it has among the replicas", "gathers",
       [](Role& role) { return with_source(role, [](Region& part) { part.over = Axes::of(Axis::replicate); }); }},
      {"parts overlap", "takes another part than its own",
       [](Role& role) { return with_source(role, [](Region& part) { part.step /= 2; }); }},
      {"what is kept is of the replicas gathered together", "gathers",
       [](Role& role) {
         const Kept kept = kept_of(role);
         if (kept.gather == nullptr || kept.gather->output.region.bytes != 2 * kept.gather->input.region.bytes)
           return false;  // of two replicas of two
         kept.gather->axes = Axes::of(Axis::replicate);
         return true;
       }},
      {"gradients are summed over a replica alone", "fit",
       [](Role& role) {
         bool any = false;
         for (Issued& issued : step_of(role))
           if (auto* one = std::get_if<Collective>(&issued.instruction);
               one != nullptr && one->kind == CollectiveKind::reduce_scatter &&
               issued.why.phase == Provenance::Phase::reduce && one->axes.has(Axis::replicate))
             one->axes = one->axes - Axes::of(Axis::replicate), any = true;
         return any;
       }},
  };
  return all;
}

}  // namespace

TEST_CASE("secondary copies that are not kept, cut or gathered as they are to be are named") {
  const ProofJobs jobs;
  std::set<std::string> met;
  for (const ProofCase& one : cases()) {
    const Plan right = jobs.plan(one.model, one.overrides, 1);
    REQUIRE(violations(right).empty());
    CHECK(print(parse_plan(print(right))) == print(right));
    for (const Mutant& mutant : mutants()) {
      Plan plan = right;
      bool changed = true;
      for (Role& role : plan.roles) changed = changed && mutant.apply(role);
      if (!changed) continue;
      for (Role& role : plan.roles) derive_order(role, plan.mesh);
      CAPTURE(one.text());
      CAPTURE(mutant.name);
      const std::vector<std::string> found = violations(plan);
      CHECK_MESSAGE(mentions(found, mutant.said), (found.empty() ? "nothing" : found.front()));
      CHECK_FALSE(found.empty());
      met.insert(mutant.name);
    }
  }
  CHECK(met.size() == mutants().size());
}

}  // namespace trainer::tests::proof_secondary_test
