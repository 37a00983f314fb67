// Mutants of what brings ranks together that train apart: each is named.
#include <doctest/doctest.h>

#include <functional>
#include <set>
#include <utility>

#include "engine/plan/verify/verify.h"
#include "tests/plan/proof_jobs.h"

namespace trainer::tests::proof_averages_test {
namespace {

std::vector<ProofCase> cases() {
  return {
      {"gpt2",
       {ranks(2), "strategy={data: {kind: local_sgd, every: 4, parts: 3, outer: {}}}", "precision.compute=bf16"}},
      {"gpt2",
       {ranks(4),
        "strategy={data: {kind: local_sgd, every: 2, parts: 2, outer: {compression: int8}}, tensor: {degree: 2}}"}},
      {"gpt2", {ranks(4), "strategy={data: {kind: local_sgd, every: 4, parts: 2, outer: {}}, pipeline: {degree: 2}}"}}};
}

using Instructions = std::vector<Issued>;

Instructions& program(Role& role, ProgramKind kind, int part = 0) {
  return role.programs[static_cast<std::size_t>(role.program_index(kind, part))].instructions;
}

Op op_of(const Role& role, const Issued& issued) {
  const auto* launch = std::get_if<Launch>(&issued.instruction);
  return launch == nullptr ? Op::zero : role.signatures[static_cast<std::size_t>(launch->signature)].op;
}

// Removes the first that is so, counted from `skip`; false: there is none.
bool drop(Instructions& all, const std::function<bool(const Issued&)>& is, int skip = 0) {
  for (std::size_t i = 0; i < all.size(); ++i)
    if (is(all[i]) && skip-- == 0) {
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
      return true;
    }
  return false;
}

bool drop(Role& role, ProgramKind kind, Op op, int skip = 0) {
  return drop(
      program(role, kind), [&](const Issued& issued) { return op_of(role, issued) == op; }, skip);
}

Launch* first(Role& role, Op op) {
  for (Issued& issued : program(role, ProgramKind::average))
    if (op_of(role, issued) == op) return &std::get<Launch>(issued.instruction);
  return nullptr;
}

// What a mutant does to a role, and what the proof says of it.
struct Mutant {
  std::string name, said;
  std::function<bool(Role&)> apply;
};

const std::vector<Mutant>& mutants() {
  static const std::vector<Mutant> all{
      {"a unit is in no part", "and so do the averages of all other parts",
       [](Role& role) {
         Instructions& of = program(role, ProgramKind::average);
         if (of.empty()) return false;
         const std::int32_t unit = of.front().why.unit;
         std::erase_if(of, [&](const Issued& issued) { return issued.why.unit == unit; });
         return true;
       }},
      {"a unit is in two parts", "which another average does too",
       [](Role& role) {
         const Instructions& of = program(role, ProgramKind::average);
         Instructions& other = program(role, ProgramKind::average, 1);
         for (const Issued& issued : of)  // in memory of the other's own nothing can be done
           if (op_of(role, issued) == Op::quantize_int8) return false;
         other.insert(other.end(), of.begin(), of.end());
         return !of.empty();
       }},
      {"outer gradients are not summed", "takes for a sum what is",
       [](Role& role) {
         return drop(program(role, ProgramKind::average), [](const Issued& issued) {
           const auto* one = std::get_if<Collective>(&issued.instruction);
           return one != nullptr && one->kind == CollectiveKind::all_reduce;
         });
       }},
      {"weights are taken for outer gradients", "takes for a sum what is",
       [](Role& role) { return drop(role, ProgramKind::average, Op::outer_gradient); }},
      {"a mean over one rank more", "makes no mean of",
       [](Role& role) {
         Launch* const launch = first(role, Op::outer_step);
         if (launch == nullptr) return false;
         Signature signature = role.signatures[static_cast<std::size_t>(launch->signature)];
         signature.attributes.set("factor", 1.0 / 3);
         launch->signature = static_cast<std::int32_t>(role.signatures.size());
         role.signatures.push_back(signature);
         return true;
       }},
      {"the way from the momentum", "takes for the anchor what is",
       [](Role& role) {
         Launch *const way = first(role, Op::outer_gradient), *const step = first(role, Op::outer_step);
         if (way == nullptr) return false;
         way->operands[0] = Read{region_of(step->operands[1])};
         return true;
       }},
      {"the anchor is not made of loaded weights", "with an anchor of",
       [](Role& role) { return drop(role, ProgramKind::refresh, Op::cast); }},
      {"what a rank has is not put aside", "without keeping what each rank has",
       [](Role& role) { return drop(role, ProgramKind::swap, Op::cast, 2); }},
      {"what ranks agreed on does not come", "without bringing",
       [](Role& role) { return drop(role, ProgramKind::swap, Op::cast, 1); }},
  };
  return all;
}

}  // namespace

TEST_CASE("parts that are left out, come twice or are no means, and anchors that are none, are named") {
  const ProofJobs jobs;
  std::set<std::string> met;
  for (const ProofCase& one : cases()) {
    const Plan right = jobs.plan(one.model, one.overrides, 1);
    REQUIRE(violations(right).empty());
    for (const Mutant& mutant : mutants()) {
      Plan plan = right;
      int changed = 0;
      for (Role& role : plan.roles) changed += mutant.apply(role) ? 1 : 0;
      if (changed == 0) continue;
      for (Role& role : plan.roles) derive_order(role, plan.mesh);
      CAPTURE(one.text());
      CAPTURE(mutant.name);
      CHECK(mentions(violations(plan), mutant.said));
      met.insert(mutant.name);
    }
  }
  CHECK(met.size() == mutants().size());
}

TEST_CASE("a plan of several averages is read back from its text") {
  const ProofJobs jobs;
  for (const ProofCase& one : cases()) {
    const Plan plan = jobs.plan(one.model, one.overrides, 1);
    CHECK(print(parse_plan(print(plan))) == print(plan));
  }
}

}  // namespace trainer::tests::proof_averages_test
