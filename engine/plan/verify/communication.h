// A part of verification (verify.h): that all ranks run to the end, and that what they tell each other is what it is
// taken for.
//
// One rank a role is played. The ranks of a role run one program, and all regions of a role have one size on all of
// them; so those that meet in a collective inside a role stand at the same instruction by construction, and ranks of
// several roles meet at the same coordinates along the other axes. A play of all ranks in which those of a role move
// together is a play of one rank a role; and since no rank ever chooses between communications, one play that ends
// means that all do, and one that is stuck that none ends. So the cost does not depend on the number of ranks.
//
// A rank may communicate on several streams, each in issue order; a collective ends when all its members have come to
// it on theirs. Assumed of a device with more than one: any goes on while the others wait for other ranks
// (communicators of their own on streams of their own, the kernels of all resident at once). Checked: a group is on one
// stream, so its collectives have one order; and only Stream::communication joins stages, so nothing on the others
// waits for another role. Hence all are played as one, in issue order, which all waits point back in: what the others
// do is always met at once, and the play is stuck just where the first one is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer {

/// Appends what is wrong with a program, named by role and instruction. REQUIRES: one role a stage, equally many
/// programs; accesses lie inside their buffers and operands fit their signatures; `point` is one of the ranks played.
void prove_communication(const Plan& plan, std::size_t program, const MeshPoint& point,
                         std::vector<std::string>& found);

/// "role 0, step #12 (print of the instruction): "
std::string place_of(const std::string& who, const Role& role, const Program& program, std::size_t instruction);

}  // namespace trainer
