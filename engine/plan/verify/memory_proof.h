// A part of verification (verify.h): memory and order of one program on one rank. Every access lies where it may, finds
// what was written for it, and comes after what it must not overtake; so does every pass over a loop (loop.h).
#pragma once

#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer {

/// Appends what is wrong to `found`, a line each; `who`: the role.
void prove_memory(const Role& role, std::size_t program, const MeshPoint& point, const std::string& who,
                  std::vector<std::string>& found);

}  // namespace trainer
