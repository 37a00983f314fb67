// Verification: proof, on every plan, that it computes what it says on every rank. Order and memory are recomputed
// from the plan as it stands; nothing of the planner's own reasoning is used.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer {

/// What is wrong with a plan, a line each, named by role or rank, program and instruction; empty if all holds:
///  - every operand has the size that its kernel's signature says; every access lies inside its buffer, every buffer
///    inside the allocation, every wait points back in issue order; buffers and workspaces begin at multiples of
///    kBufferAlignment, operands of kernels at multiples of kOperandAlignment, of one element at a multiple of its
///    size;
///  - nothing is read before it is written, nor after its memory was taken over by another buffer; a pass touches what
///  is
///    of its micro-batch, or of none;
///  - only moves touch what is off the device: it comes before it is used, and what an update leaves of it goes back to
///    where it came from;
///  - two accesses of the same address, one of them a write, are ordered by streams and waits;
///  - communication is issued on a stream that is for it, all of a group on the same; the collectives of a group match
///    in name, kind, dtype and bytes on all members, every send meets the receive of the same value and micro-batch,
///    and all ranks run to the end even if every communication is a rendezvous (communication.h);
///  - every communication does what its kind says: sums are of what is still to be summed over just those ranks,
///    gathers are of slices, the dtype is that of the bytes, somebody reads what it brings; every kernel finds its
///    operands cut over the ranks in a way that its op can work on (facts.h);
///  - after every program each parameter and state lies over the ranks as its unit says, the same where it is to be the
///    same, its working copy no older than itself; a step updates each unit once, with gradients summed
///    over all that share it, and reports numbers that all ranks agree on (flow.h). Of a plan that lets ranks drift
///    apart (Plan::drifts) the last two hold along the data axes for what `average` leaves.
std::vector<std::string> violations(const Plan& plan);

/// Raises Bug with the first few violations, if there are any.
void verify(const Plan& plan);

}  // namespace trainer
