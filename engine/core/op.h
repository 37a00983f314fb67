// Op: every operation a plan can launch, by name. Ops of a model's graph (their shapes, gradients and sharding
// rules are in engine/ops/), the ops their gradients need, and the ops of a step (optimizer, norm, packing).
// What each takes and gives, operand by operand, is in kernels/<op>.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace trainer {

enum class Op : std::uint8_t {
#define TRAINER_OP(name) name,
#include "engine/core/ops.inc"
};

inline constexpr int kNumOps = static_cast<int>(Op::top_k_sum) + 1;

std::string_view name_of(Op op);
std::optional<Op> op_named(std::string_view name);

}  // namespace trainer
