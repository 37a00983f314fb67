// Sums over rows, column by column. Pointers are to f32 or, as the flags say, to bf16.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

DECLARE_BY_ISA(
    /// y[c] = (accumulate ? y[c] : 0) + Σ_r x[r · stride + c] for the columns c in [begin, end), r in [0, rows).
    void sum_rows(bool bf16_x, bool bf16_y, const void* x, void* y, std::int64_t rows, std::int64_t stride,
                  bool accumulate, std::int64_t begin, std::int64_t end);
    /// y[c] = (accumulate ? y[c] : 0) + Σ over r and i of x[(r · columns + c) · inner + i] for c in [begin, end), r in
    /// [0, rows).
    void sum_planes(bool bf16_x, bool bf16_y, const void* x, void* y, std::int64_t rows, std::int64_t columns,
                    std::int64_t inner, bool accumulate, std::int64_t begin, std::int64_t end);
    /// y[c] = (accumulate ? y[c] : 0) + Σ_k x[index[k] · stride + c] for c in [begin, end); x as `bf16_x`, y as
    /// `bf16_y` say.
    void sum_indexed_rows(bool bf16_x, bool bf16_y, const void* x, const std::int32_t* index, std::int64_t count,
                          void* y, std::int64_t stride, bool accumulate, std::int64_t begin, std::int64_t end);
    /// y[c] = (accumulate ? y[c] : 0) + Σ_p partials[p · stride + c], p in [0, parts), partials f32.
    void sum_partials(bool bf16_y, const float* partials, void* y, std::int64_t parts, std::int64_t stride,
                      bool accumulate, std::int64_t begin, std::int64_t end);
    /// squares[i] = Σ_j (w[i, j] + factor · Σ_k b[i, k] a[k, j])² for the rows i in [begin, end) of w [·, columns], a
    /// [rank, columns], b [·, rank], all bf16 or all f32.
    void row_squares(bool bf16, const void* w, const void* a, const void* b, float factor, std::int64_t columns,
                     std::int64_t rank, float* squares, std::int64_t begin, std::int64_t end);)

}  // namespace trainer::kernels::cpu
