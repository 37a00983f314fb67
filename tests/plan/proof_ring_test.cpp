// Mutants of rings: what would give wrong gradients without any rank noticing is refused, and named.
#include <doctest/doctest.h>

#include "engine/core/op_record.h"
#include "engine/plan/memory.h"
#include "engine/plan/verify/verify.h"
#include "tests/plan/proof_jobs.h"

namespace trainer::tests::proof_ring_test {
namespace {

struct RingPlan {
  Plan plan;

  explicit RingPlan(int ranks)
      : plan(ProofJobs().plan(
            "llama", {"cluster.devices_per_node=" + std::to_string(ranks),
                      "strategy={context: {degree: " + std::to_string(ranks) + ", kind: ring}}", "data.val=null"})) {}

  Role& role() { return plan.roles[0]; }
  std::vector<Issued>& step() { return role().programs[0].instructions; }
  const Signature& signature(const Launch& launch) {
    return role().signatures[static_cast<std::size_t>(launch.signature)];
  }
  /// Launches of an op at a step of the ring, in order; of `add` and others without steps all in passes.
  std::vector<Launch*> launches(Op op, std::int64_t of_step = -1) {
    std::vector<Launch*> found;
    for (Issued& issued : step())
      if (auto* launch = std::get_if<Launch>(&issued.instruction); launch != nullptr && signature(*launch).op == op)
        if (of_step < 0 || integer(signature(*launch), "step") == of_step) found.push_back(launch);
    return found;
  }
  std::vector<Collective*> shifts() {
    std::vector<Collective*> found;
    for (Issued& issued : step())
      if (auto* one = std::get_if<Collective>(&issued.instruction);
          one != nullptr && one->kind == CollectiveKind::shift)
        found.push_back(one);
    return found;
  }
  /// Memory is planned again, so that what is found is about values and not about the lives of buffers.
  std::vector<std::string> found() {
    plan_memory(role());
    derive_order(role(), plan.mesh);
    return violations(plan);
  }
};

/// Whether a violation says so; else the test shows what was found.
bool refused(const std::vector<std::string>& found, std::string_view what) {
  std::string all;
  for (const std::string& line : found) all += "\n  " + line;
  if (!mentions(found, what)) MESSAGE("found:" << all);
  return mentions(found, what);
}

constexpr std::size_t kKeys = 2, kValues = 3;  // of attention_block_grad

}  // namespace

TEST_CASE("a ring's plan holds, and shifts keys, values and their gradients as often as they travel") {
  for (int ranks : {2, 4}) {
    RingPlan ring(ranks);
    CHECK(ring.found() == std::vector<std::string>{});
    const std::size_t layers = ring.launches(Op::attention_block, 0).size();
    REQUIRE(layers > 0);
    const auto n = static_cast<std::size_t>(ranks);
    CHECK(ring.launches(Op::attention_block).size() == n * layers);
    CHECK(ring.launches(Op::attention_block_grad).size() == n * layers);
    CHECK(ring.shifts().size() == layers * (2 * (n - 1) + 2 * (n - 1) + 2 * n));
  }
}

TEST_CASE("keys or values of the step before, in the backward ring and in the forward one, are refused") {
  for (std::size_t operand : {kKeys, kValues})
    for (std::int64_t step : {1, 2, 3}) {
      RingPlan ring(4);
      Launch &before = *ring.launches(Op::attention_block_grad, step - 1)[0],
             &block = *ring.launches(Op::attention_block_grad, step)[0];
      block.operands[operand] = before.operands[operand];
      CHECK(refused(ring.found(), "cannot work on what is"));
    }
  RingPlan ring(4);
  ring.launches(Op::attention_block, 1)[0]->operands[1] = ring.launches(Op::attention_block, 0)[0]->operands[1];
  CHECK(refused(ring.found(), "cannot work on what is"));
}

TEST_CASE("a step that is left out, done twice or out of turn is refused") {
  {  // the second block does the work of the third
    RingPlan ring(4);
    ring.launches(Op::attention_block, 1)[0]->signature = ring.launches(Op::attention_block, 2)[0]->signature;
    CHECK(refused(ring.found(), "cannot work on what is"));
  }
  {  // o without the last block
    RingPlan ring(4);
    const Region early = region_of(ring.launches(Op::attention_block, 2)[0]->operands.end()[-2]),
                 whole = region_of(ring.launches(Op::attention_block, 3)[0]->operands.end()[-2]);
    for (Issued& issued : ring.step())
      if (auto* launch = std::get_if<Launch>(&issued.instruction))
        for (Operand& operand : launch->operands)
          if (region_of(operand) == whole && access_of(operand) == Access::read) operand = Read{early};
    CHECK(refused(ring.found(), "cannot work on what is"));
  }
  {  // gradients of keys without the share of one block: the sum of the step before is sent on
    RingPlan ring(4);
    Launch* sum = nullptr;
    for (Launch* add : ring.launches(Op::add))
      if (ring.role().name(add->name).find(".dk.sum.") != std::string::npos && sum == nullptr) sum = add;
    REQUIRE(sum != nullptr);
    const Region arriving = region_of(sum->operands[0]), made = region_of(sum->operands[2]);
    for (Collective* shift : ring.shifts())
      if (shift->input.region == made) shift->input.region = arriving;
    sum->operands[1] = sum->operands[0];  // and a share that is none
    CHECK(refused(ring.found(), "cannot work on what is"));
  }
}

TEST_CASE("a shift too many or too few is refused") {
  RingPlan ring(4);
  const std::size_t shifts = ring.shifts().size();
  for (std::size_t number = 0; number < shifts; number += 3) {
    RingPlan fewer(4);
    Collective* const gone = fewer.shifts()[number];
    // What it would bring is what it takes.
    const Region from = gone->input.region, to = gone->output.region;
    for (Issued& issued : fewer.step())
      if (auto* launch = std::get_if<Launch>(&issued.instruction))
        for (Operand& operand : launch->operands)
          if (region_of(operand) == to && access_of(operand) == Access::read) operand = Read{from};
    std::erase_if(fewer.step(),
                  [&](const Issued& issued) { return std::get_if<Collective>(&issued.instruction) == gone; });
    CHECK_FALSE(fewer.found().empty());
  }
}

}  // namespace trainer::tests::proof_ring_test
