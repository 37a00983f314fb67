// PreparedProgram: a program of a role with every look-up done for one rank: addresses instead of regions, ranks
// instead of distances, kernels instead of signatures. What all devices share before they differ in how instructions
// are carried out.
//
// It is as long as the program's list, however often the list's loops run. An address in a ring moves on from pass to
// pass: enter() puts an instruction's addresses where its next pass has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/plan/plan.h"
#include "engine/run/places.h"
#include "kernels/kernel.h"

namespace trainer {

/// An instruction of a program, by its kind: of a launch kernel, operands, workspace and origin; of the others where
/// their bytes are.
struct PreparedInstruction {
  const Instruction* instruction = nullptr;
  kernels::Kernel* kernel = nullptr;
  std::uint32_t first = 0, count = 0;  ///< in the program's addresses, or of an exchange in its parts
  std::uint32_t first_ring = 0, num_rings = 0;
  bool workspace = false;        ///< of a launch: the last of its addresses
  std::int64_t origin = 0;       ///< of the first pass
  std::int64_t origin_step = 0;  ///< in a loop: by which it grows from pass to pass
  std::int64_t slice_bytes = 0;  ///< of a collective's input, for each member
  std::int64_t away = 0;         ///< of a move: where its bytes are in the other space,
  bool comes = false;            ///< and whether they come from there

  bool exchanges() const { return std::holds_alternative<Exchange>(*instruction); }
};

/// An address of an instruction in a loop that is another in every pass: part `part` of a ring, and from pass to pass
/// `advance` parts on.
struct RingAddress {
  std::uint32_t at = 0;  ///< in the program's addresses, or of an exchange in its parts
  std::byte* base = nullptr;
  std::int64_t stride = 0;
  std::int64_t part = 0, advance = 0, parts = 1;

  void* in_pass(std::int32_t pass) const { return base + (part + pass * advance) % parts * stride; }
};

struct PreparedProgram {
  const Program* program = nullptr;
  std::vector<PreparedInstruction> instructions;  ///< as listed
  std::vector<void*> addresses;
  std::vector<Communicator::Part> parts;  ///< of exchanges: sends, then receives
  std::vector<RingAddress> rings;

  /// What follows are the addresses of that pass. No two threads enter or read one instruction at a time.
  void enter(const PreparedInstruction& one, std::int32_t pass) {
    for (const RingAddress& ring : std::span(rings).subspan(one.first_ring, one.num_rings))
      (one.exchanges() ? parts[ring.at].data : addresses[ring.at]) = ring.in_pass(pass);
  }
  kernels::Call call(const PreparedInstruction& one, std::int32_t pass) const {
    const std::span<void* const> all(addresses.data() + one.first, one.count);
    return {all.first(one.count - (one.workspace ? 1 : 0)), one.workspace ? all.back() : nullptr,
            one.origin + pass * one.origin_step};
  }
  /// Of a collective and a copy. A move has one address, on the device.
  void* input(const PreparedInstruction& one) const { return addresses[one.first]; }
  void* output(const PreparedInstruction& one) const { return addresses[one.first + one.count - 1]; }
  std::span<const Communicator::Part> sends(const PreparedInstruction& one) const;
  std::span<const Communicator::Part> receives(const PreparedInstruction& one) const;
};

/// Where a rank's kernels work: the memory of that space, and the kernel of each signature of the role that they run
/// there (null: none does).
struct Workplace {
  std::byte* memory = nullptr;
  std::span<const std::unique_ptr<kernels::Kernel>> kernels;
};

/// The program as `rank` runs it. `plan` and the kernels outlive the result. `host`: of what runs on the processor of
/// the device's host.
PreparedProgram prepare_program(const Plan& plan, int rank, const Program& program, const Workplace& device,
                                const Workplace& host = {});

/// The instruction as it runs at a place.
Issued issued_at(const Role& role, const Program& program, const Place& place);

/// "h.0.ln_1 = layer_norm … (instruction #12 of step)": for errors, and for what a rank says it does. `number`: of the
/// place.
std::string text_of_place(const Role& role, const Program& program, std::int32_t number);

/// Whether scratch memory is filled with NaN before each program (TRAINER_POISON).
bool poison_scratch();

}  // namespace trainer
