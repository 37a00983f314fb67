// Plans for playing, made by hand: every action of a schedule is so many kernels of one duration, and what chunks pass
// on is a few bytes.
#pragma once

#include <cstdint>

#include "engine/cost/cost_model.h"
#include "engine/plan/plan.h"
#include "engine/plan/strategy.h"

namespace trainer::cost {

/// A GPU of round figures: 1 TB/s of memory, 100 GB/s links, 8 devices a node.
MachineModel round_machine();

/// A kernel that moves 3 · 4 · `elements` bytes and computes nothing.
Signature kernel_of(std::int64_t elements);

/// How many kernels of kernel_of(elements) an action takes, by kind; a whole backward is input and weight part.
struct ActionKernels {
  int forward = 1, backward_input = 1, backward_weight = 1;
  std::int64_t elements = std::int64_t{1} << 34;
};

/// The step of a pipeline: each role's actions in order, before each what order_transfers has it transfer, `bytes` a
/// message. Has no buffers, and waits between streams as derive_order would make them.
Plan pipeline_plan(const Schedule& schedule, const ActionKernels& kernels, std::int64_t bytes = 4);

}  // namespace trainer::cost
