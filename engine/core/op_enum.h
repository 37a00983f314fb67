// Op: every operation of graphs and plans. Ops of a model's graph, the ops their gradients need, and the ops of a step
// (optimizer, norm, packing). Apart from op.h so that loops files (kernels/README.md) may name ops: they include
// nothing with code in it.
#pragma once

#include <cstdint>

namespace trainer {

enum class Op : std::uint8_t {
#define TRAINER_OP(name, kernel) name,
#include "engine/core/ops.inc"
};

inline constexpr int kNumOps = 0
#define TRAINER_OP(name, kernel) +1
#include "engine/core/ops.inc"
    ;

}  // namespace trainer
