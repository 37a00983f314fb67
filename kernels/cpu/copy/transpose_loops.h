// Transposition of matrices in memory.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

/// Elements of `from` [rows, columns] and `to` [columns, rows], whose rows begin `from_row` and `to_row` elements
/// apart.
struct Transposition {
  std::int64_t rows = 0, columns = 0, from_row = 0, to_row = 0;
};

DECLARE_BY_ISA(
    /// to[c, r] = from[r, c]. They do not overlap.
    void transpose_u16(const Transposition& t, const std::uint16_t* from, std::uint16_t* to);
    void transpose_f32(const Transposition& t, const float* from, float* to);
    /// to[c, r] += from[r, c].
    void add_transposed_f32(const Transposition& t, const float* from, float* to);)

}  // namespace trainer::kernels::cpu
