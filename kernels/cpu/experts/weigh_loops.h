// Rows times a number of their own, and products of rows. Pointers are to f32 or bf16, as `bf16` says.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

DECLARE_BY_ISA(
    /// y[r, c] = x[r, c] · weights[r] for the rows r in [begin, end). y may be x.
    void weigh_rows(bool bf16, const void* x, const float* weights, void* y, std::int64_t columns, std::int64_t begin,
                    std::int64_t end);
    /// dots[r] = Σ_c a[r, c] · b[r, c] for the rows r in [begin, end).
    void dot_rows(bool bf16, const void* a, const void* b, float* dots, std::int64_t columns, std::int64_t begin,
                  std::int64_t end);)

}  // namespace trainer::kernels::cpu
