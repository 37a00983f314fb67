// The proof on plans of every strategy, which hold, and on addresses, which must be aligned.
#include <doctest/doctest.h>

#include "engine/ops/op_def.h"
#include "engine/plan/verify/verify.h"
#include "tests/plan/proof_jobs.h"

namespace trainer::tests::proof_test {

TEST_CASE("plans of every strategy hold, and so do their texts") {
  const ProofJobs jobs;
  for (const ProofCase& one : all_cases())
    for (const auto& [evaluation, streams] :
         {std::pair("data.val=null", 1), std::pair("data.val={fraction: 0.2}", 1),
          std::pair("data.val={fraction: 0.2}", 2), std::pair("data.val={fraction: 0.2}", 3)}) {
      CAPTURE(one.text());
      CAPTURE(streams);
      std::vector<std::string> overrides = one.overrides;
      overrides.emplace_back(evaluation);
      const Plan plan = jobs.plan(one.model, overrides, streams);  // compile verifies
      const std::string text = print(plan);
      const Plan again = parse_plan(text);
      CHECK(print(again) == text);
      CHECK(violations(again) == std::vector<std::string>{});
    }
}

TEST_CASE(
    "buffers and workspaces begin at multiples of 256 bytes, operands at multiples of 64, and the proof refuses "
    "others") {
  const ProofJobs jobs;
  for (const ProofCase& one : plain_cases()) {
    CAPTURE(one.text());
    for (const Role& role : jobs.plan(one.model, one.overrides).roles)
      for (const Buffer& buffer : role.buffers) CHECK((buffer.offset == -1 || buffer.offset % 256 == 0));
  }
  const auto shifted = [&](std::int64_t by) {
    Plan plan = jobs.plan("gpt2", {});
    Role& role = plan.roles[0];
    for (const Issued& issued : role.programs[0].instructions) {
      const auto* launch = std::get_if<Launch>(&issued.instruction);
      if (launch == nullptr || launch->workspace.region.bytes == 0) continue;
      role.buffers[static_cast<std::size_t>(launch->workspace.region.buffer)].offset =
          role.total_bytes + by;  // clear of all others
      break;
    }
    role.total_bytes += 512;
    return violations(plan);
  };
  CHECK(shifted(256) == std::vector<std::string>{});
  CHECK(mentions(shifted(128), "has a workspace at an address that is no multiple of 256"));
  CHECK(mentions(shifted(128), "uses a buffer whose offset is no multiple of 256"));

  Plan moved = jobs.plan("gpt2", {});
  for (Issued& issued : moved.roles[0].programs[0].instructions)
    if (auto* launch = std::get_if<Launch>(&issued.instruction);
        launch != nullptr && moved.roles[0].signatures[static_cast<std::size_t>(launch->signature)].op == Op::linear) {
      std::get<Read>(launch->operands[0]).region.offset += 4;
      break;
    }
  CHECK(mentions(violations(moved), "gives operand 0 an address that is no multiple of 64"));
}

}  // namespace trainer::tests::proof_test
