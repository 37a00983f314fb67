// What the CPU's preparation functions share besides kernels/prepare.h: dtypes and the choice of an instruction set.
#pragma once

#include "kernels/cpu/runtime/choose.h"
#include "kernels/prepare.h"

namespace trainer::kernels::cpu {

/// Raises Bug unless operand `operand` is f32 or bf16; returns whether it is bf16.
bool expect_compute_dtype(const Signature& signature, int operand);

}  // namespace trainer::kernels::cpu
