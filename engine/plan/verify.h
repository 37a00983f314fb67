// Verification: proof, on every plan, that it computes what it says on every rank. Order and memory are worked out anew
// from the plan as it stands; nothing of the planner's own reasoning is used.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer {

/// What is wrong with a plan, a line each, named by role or rank, program and instruction; empty if all holds:
///  - every operand has the size that its kernel's signature says; every access lies inside its buffer, every buffer inside the
///    allocation, every wait points back in issue order;
///  - nothing is read before it is written, nor after its memory was taken over by another buffer;
///  - two accesses of the same address, one of them a write, are ordered by streams and waits;
///  - communication is issued on the communication stream alone, the collectives of a group match in kind, dtype and bytes
///    on all members, every send meets its receive, and all ranks run to the end even if every communication is a rendezvous;
///  - ranks along the replicate axis hold the same parameters and states after every program, and report the same numbers.
std::vector<std::string> violations(const Plan& plan);

/// Raises Bug with the first few violations, if there are any.
void verify(const Plan& plan);

}  // namespace trainer
