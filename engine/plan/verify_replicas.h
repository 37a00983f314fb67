// A part of verification (verify.h): what data parallel ranks hold in common.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "engine/plan/plan.h"

namespace trainer {

/// Calls report(instruction, what) for every way in which ranks along the replicate axis may come to hold different parameters or
/// states, or report different numbers. REQUIRES: the accesses of the program lie inside their buffers.
void prove_replicas(const Role& role, const Program& program, const std::function<void(std::size_t, const std::string&)>& report);

}  // namespace trainer
