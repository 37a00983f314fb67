// For tests of the CPU's kernels alone: runs of a prepared kernel in a context, the instruction sets this machine
// offers.
#pragma once

#include <vector>

#include "kernels/cpu/table.h"
#include "tests/kernels/buffer.h"

namespace trainer::kernels::test {

/// Prepares and runs once, with exactly the workspace that the target states.
inline void run(const Signature& signature, const cpu::Context& context, std::vector<void*> operands) {
  const Buffer workspace(cpu::CpuTarget(context).workspace_bytes(signature));
  cpu::prepare(signature, context)->run({.operands = operands, .workspace = workspace.data()});
}

inline std::vector<cpu::Isa> isas() {
  std::vector<cpu::Isa> found;
  for (cpu::Isa isa : {cpu::Isa::portable, cpu::Isa::avx2, cpu::Isa::avx512, cpu::Isa::avx512_bf16, cpu::Isa::amx})
    if (isa <= cpu::detect_isa()) found.push_back(isa);
  return found;
}

}  // namespace trainer::kernels::test
