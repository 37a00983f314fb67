// Mutants of weights and gradients that travel as codes of 8 bits: each is named.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "engine/core/compression.h"
#include "engine/plan/verify/verify.h"
#include "tests/plan/proof_jobs.h"

namespace trainer::tests::proof_codes_test {
namespace {

std::vector<ProofCase> cases() {
  return {{"llama",
           {ranks(2), "strategy={data: {kind: fsdp, reduce_dtype: int8, gather: int8}}", "model.with.dim=64",
            "model.with.hidden=104"}},
          {"gpt2", {ranks(2), "strategy={data: {kind: fsdp, gather: int8, reduce_dtype: int8}}"}},
          {"llama",
           {ranks(4), "strategy={data: {kind: zero3, gather: int8, reduce_dtype: int8}, tensor: {degree: 2}}",
            "precision.compute=bf16"}},
          {"gpt2",
           {ranks(4),
            "strategy={data: {kind: fsdp, sharding: hybrid_shard, replicate: 2, gather: int8, reduce_dtype: int8}}"}}};
}

std::vector<Issued>& step_of(Role& role) { return role.programs[0].instructions; }

Signature signature_of(const Role& role, const Launch& launch) {
  return role.signatures[static_cast<std::size_t>(launch.signature)];
}

void sign(Role& role, Launch& launch, const Signature& signature) {
  launch.signature = static_cast<std::int32_t>(role.signatures.size());
  role.signatures.push_back(signature);
}

using Phase = Provenance::Phase;

// The first launch of an op in a phase, or collective of a kind; null: there is none.
Launch* launch_of(Role& role, Op op, Phase phase) {
  for (Issued& issued : step_of(role))
    if (auto* launch = std::get_if<Launch>(&issued.instruction);
        launch != nullptr && signature_of(role, *launch).op == op && issued.why.phase == phase)
      return launch;
  return nullptr;
}
Collective* collective_of(Role& role, CollectiveKind kind, Phase phase) {
  for (Issued& issued : step_of(role))
    if (auto* one = std::get_if<Collective>(&issued.instruction);
        one != nullptr && one->kind == kind && issued.why.phase == phase && one->dtype == DType::u8)
      return one;
  return nullptr;
}

template <typename T>
bool drop(Role& role, const T* what) {
  std::vector<Issued>& step = step_of(role);
  return std::erase_if(step, [&](const Issued& issued) { return std::get_if<T>(&issued.instruction) == what; }) == 1;
}

bool slices_of(Role& role, Launch* launch, std::int64_t slices) {
  Signature signature = signature_of(role, *launch);
  signature.attributes.set("slices", slices);
  sign(role, *launch, signature);
  return true;
}

// What a mutant does to a role, and what the proof says of it.
struct Mutant {
  std::string name, said;
  std::function<bool(Role&)> apply;
};

const std::vector<Mutant>& mutants() {
  static const std::vector<Mutant> all{
      {"weights are gathered and not decoded", "reads bytes that",
       [](Role& role) { return drop(role, launch_of(role, Op::dequantize_int8, Phase::gather)); }},
      {"codes are not gathered", "reads bytes that nothing has written",
       [](Role& role) { return drop(role, collective_of(role, CollectiveKind::all_gather, Phase::gather)); }},
      {"codes are not made", "reads bytes that nothing has written",
       [](Role& role) { return drop(role, launch_of(role, Op::quantize_int8, Phase::gather)); }},
      {"each rank decodes as if there were more slices", "decompresses another number of parts than there are",
       [](Role& role) { return slices_of(role, launch_of(role, Op::dequantize_int8, Phase::gather), 8); }},
      {"a slice is coded as several", "makes codes of another number of elements",
       [](Role& role) { return slices_of(role, launch_of(role, Op::quantize_int8, Phase::gather), 2); }},
      {"a rank codes more than its slice", "reaches beyond its buffer",
       [](Role& role) {
         Launch* const launch = launch_of(role, Op::quantize_int8, Phase::gather);
         std::get<Read>(launch->operands[0]).region.offset += 64;
         return true;
       }},
      {"codes are gathered over other ranks", "gathers",
       [](Role& role) {
         const bool replicas = std::ranges::any_of(step_of(role), [](const Issued& issued) {
           const auto* one = std::get_if<Collective>(&issued.instruction);
           return one != nullptr && one->axes == Axes::of(Axis::replicate);
         });
         if (!replicas) return false;
         collective_of(role, CollectiveKind::all_gather, Phase::gather)->axes = Axes::of(Axis::replicate);
         return true;
       }},
      {"codes of gradients stay where they are", "decompresses another number of elements",
       [](Role& role) {
         const Region mine = region_of(launch_of(role, Op::quantize_int8, Phase::reduce)->operands[1]);
         launch_of(role, Op::dequantize_sum_int8, Phase::reduce)->operands[0] = Read{mine};
         return true;
       }},
      {"codes of gradients are not exchanged", "reads bytes that nothing has written",
       [](Role& role) { return drop(role, collective_of(role, CollectiveKind::all_to_all, Phase::reduce)); }},
      {"codes of gradients are cut where none begin", "cuts codes where none begin",
       [](Role& role) {
         for (Issued& issued : step_of(role)) {  // of as many bytes either way
           auto* launch = std::get_if<Launch>(&issued.instruction);
           if (launch == nullptr || issued.why.phase != Phase::reduce) continue;
           const Signature signature = signature_of(role, *launch);
           const std::int64_t bytes = int8_bytes(signature.operands[0].elements());
           if (signature.op == Op::quantize_int8 && region_of(launch->operands[1]).bytes == bytes)
             return slices_of(role, launch, 1);
         }
         return false;
       }},
      {"gradients are summed as weights are decoded", "decompresses what is",
       [](Role& role) {
         Launch* const launch = launch_of(role, Op::dequantize_sum_int8, Phase::reduce);
         Signature signature = signature_of(role, *launch);
         signature.op = Op::dequantize_int8;
         sign(role, *launch, signature);
         return true;
       }},
      {"matrices and norms are coded together",
       "makes codes of what ranks have alike together with what each has a part of along tensor",
       [](Role& role) {
         const auto mixes = [](const Unit& unit) {
           const auto is_cut = [](const UnitTensor& tensor) { return tensor.spec.is_cut(Axis::tensor); };
           return unit.trained() && std::ranges::any_of(unit.tensors, is_cut) &&
                  !std::ranges::all_of(unit.tensors, is_cut);
         };
         if (std::ranges::none_of(role.units, mixes)) return false;
         for (Issued& issued : step_of(role)) {
           auto* launch = std::get_if<Launch>(&issued.instruction);
           if (launch == nullptr || issued.why.phase != Phase::reduce) continue;
           Signature signature = signature_of(role, *launch);
           if (signature.op != Op::quantize_int8) continue;
           signature.op = Op::top_k_compress;  // of all elements of a unit, where blocks of int8 are of one tensor
           sign(role, *launch, signature);
         }
         return true;
       }},
      {"a sum is left out", "reads bytes that",
       [](Role& role) { return drop(role, launch_of(role, Op::dequantize_sum_int8, Phase::reduce)); }},
  };
  return all;
}

}  // namespace

TEST_CASE("codes that are not made, sent, decoded or counted as they are to be are named") {
  const ProofJobs jobs;
  std::set<std::string> met;
  for (const ProofCase& one : cases()) {
    const Plan right = jobs.plan(one.model, one.overrides, 1);
    REQUIRE(violations(right).empty());
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
      met.insert(mutant.name);
    }
  }
  CHECK(met.size() == mutants().size());
}

TEST_CASE("plans with codes are read back from their text, and launches wait for gathers as late as they can") {
  const ProofJobs jobs;
  for (const ProofCase& one : cases()) {
    const Plan plan = jobs.plan(one.model, one.overrides, 1);
    CHECK(print(parse_plan(print(plan))) == print(plan));
  }
  // A unit that is gathered ahead of its use is decoded behind the kernels of the unit before.
  Plan plan = jobs.plan("gpt2", {ranks(2), "strategy={data: {kind: fsdp, gather: int8, prefetch: 1}}"}, 1);
  Role& role = plan.roles.front();
  const std::vector<Issued>& step = step_of(role);
  int ahead = 0;
  for (std::size_t i = 0; i < step.size(); ++i) {
    const auto* gather = std::get_if<Collective>(&step[i].instruction);
    if (gather == nullptr || gather->kind != CollectiveKind::all_gather) continue;
    std::size_t decode = i;
    for (bool found = false; !found && ++decode < step.size();) {
      const auto* launch = std::get_if<Launch>(&step[decode].instruction);
      found = launch != nullptr && signature_of(role, *launch).op == Op::dequantize_int8 &&
              region_of(launch->operands[0]) == gather->output.region;
    }
    REQUIRE(decode < step.size());
    for (std::size_t between = i + 1; between < decode; ++between)
      ahead += step[between].why.phase == Phase::forward ? 1 : 0;
  }
  CHECK(ahead > 0);
}

}  // namespace trainer::tests::proof_codes_test
