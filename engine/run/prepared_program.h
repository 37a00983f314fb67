// PreparedProgram: a program of a role with every look-up done for one rank: addresses instead of regions, ranks
// instead of distances, kernels instead of signatures. What all devices share before they differ in how instructions
// are carried out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/plan/plan.h"
#include "kernels/kernel.h"

namespace trainer {

/// An instruction of a program, by its kind: of a launch kernel, operands, workspace and origin; of the others where
/// their bytes are.
struct PreparedInstruction {
  const Instruction* instruction = nullptr;
  kernels::Kernel* kernel = nullptr;
  std::uint32_t first = 0, count = 0;  ///< in the program's operands, or in its parts
  void* workspace = nullptr;
  std::int64_t origin = 0;
  std::byte* input = nullptr;    ///< of a collective and of a copy from the device
  std::byte* output = nullptr;   ///< of a collective and of a copy to the device
  std::int64_t slice_bytes = 0;  ///< of a collective's input, for each member
};

struct PreparedProgram {
  const Program* program = nullptr;
  std::vector<PreparedInstruction> instructions;  ///< in issue order
  std::vector<void*> operands;
  std::vector<Communicator::Part> parts;  ///< of exchanges: sends, then receives

  kernels::Call call(const PreparedInstruction& one) const {
    return {{operands.data() + one.first, one.count}, one.workspace, one.origin};
  }
  std::span<const Communicator::Part> sends(const PreparedInstruction& one) const;
  std::span<const Communicator::Part> receives(const PreparedInstruction& one) const;
};

/// The program as `rank` runs it, its memory at `memory`. `plan` and `kernels` (of each signature of the role) outlive
/// the result.
PreparedProgram prepare_program(const Plan& plan, int rank, const Program& program, std::byte* memory,
                                std::span<const std::unique_ptr<kernels::Kernel>> kernels);

/// "h.0.ln_1 = layer_norm … (instruction #12 of step)": for errors, and for what a rank says it does.
std::string place_of(const Role& role, const Program& program, std::int32_t instruction);

/// Whether scratch memory is filled with NaN before each program (TRAINER_POISON).
bool poison_scratch();

}  // namespace trainer
