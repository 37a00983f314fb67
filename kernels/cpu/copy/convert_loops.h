// Conversion between f32 and bf16.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

DECLARE_BY_ISA(
    /// y[i] = x[i] for i in [begin, end): from f32 to bf16, or back.
    void convert(bool to_bf16, const void* x, void* y, std::int64_t begin, std::int64_t end);)

}  // namespace trainer::kernels::cpu
