// Replicas stay replicas: a proof that the ranks along the replicate axis hold the same parameters and states after every program,
// and report the same numbers.
//
// A byte differs where two such ranks may disagree about it. The batch comes in different, a launch whose input differs gives
// different output, and only a collective along the axis makes it equal again. So a gradient that is not reduced, not by all, or
// not to its last byte, shows as a parameter that differs.
#include "engine/plan/verify_replicas.h"

#include <algorithm>

#include "engine/plan/address_map.h"

namespace trainer {
namespace {

// The instruction that made a byte different.
struct Mark {
  std::int32_t writer = -1;
};

class ReplicaProof {
 public:
  ReplicaProof(const Role& role, const Program& program) : role_(role), program_(program) {}

  void run(const std::function<void(std::size_t, const std::string&)>& report) {
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& instruction = program_.instructions[i].instruction;
      if (const auto* copy = std::get_if<CopyOut>(&instruction); copy != nullptr && differs(copy->region.region))
        report(i, "reports what ranks along replicate may disagree about");
      const Mark mark{makes_different(instruction) ? static_cast<std::int32_t>(i) : -1};
      for_each_access(instruction, [&](Access access, const Region& region) {
        if (access != Access::read) memory_.assign(role_.address(region, 0), role_.address(region, 0) + region.bytes, mark);
      });
    }
    for (const Buffer& buffer : role_.buffers) {
      if (buffer.program >= 0 || is_residual(buffer)) continue;
      std::int32_t writer = -1;
      memory_.update(buffer.offset, buffer.offset + buffer.bytes, [&](const Mark& mark) { writer = std::max(writer, mark.writer); });
      if (writer >= 0)
        report(static_cast<std::size_t>(writer), "leaves " + role_.name(buffer.name) + " different on ranks along replicate");
    }
  }

 private:
  // What compression left of a rank's gradients is its own.
  bool is_residual(const Buffer& buffer) const {
    return std::any_of(role_.units.begin(), role_.units.end(), [&](const Unit& unit) { return unit.residual == &buffer - role_.buffers.data(); });
  }

  bool differs(const Region& region) {
    bool any = false;
    memory_.update(role_.address(region, 0), role_.address(region, 0) + region.bytes, [&](const Mark& mark) { any = any || mark.writer >= 0; });
    return any;
  }

  bool makes_different(const Instruction& instruction) {
    bool input = false;
    for_each_access(instruction,
                    [&](Access access, const Region& region) { input = input || (access != Access::write && differs(region)); });
    return std::visit([&](const auto& one) { return makes_different(one, input); }, instruction);
  }

  static bool makes_different(const Launch& launch, bool input) {
    return input || launch.origin.per[static_cast<std::size_t>(Axis::replicate)] != 0;
  }
  static bool makes_different(const Collective& collective, bool input) {
    const bool along = collective.axes.has(Axis::replicate);
    return along ? collective.kind == CollectiveKind::reduce_scatter : input;
  }
  static bool makes_different(const Exchange&, bool) { return true; }
  // All but the batch is the loop's, and the same everywhere.
  bool makes_different(const CopyIn& copy, bool) const {
    const std::string& field = role_.fields[static_cast<std::size_t>(copy.field)].name;
    return field != "lr" && field != "step";
  }
  static bool makes_different(const CopyOut&, bool) { return false; }

  const Role& role_;
  const Program& program_;
  AddressMap<Mark> memory_;
};

}  // namespace

void prove_replicas(const Role& role, const Program& program, const std::function<void(std::size_t, const std::string&)>& report) {
  ReplicaProof(role, program).run(report);
}

}  // namespace trainer
