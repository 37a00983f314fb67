// Loops over one plane of a pool: formulas in kernels/pool.h. Pointers to c are f32 or, if `bf16`, bf16.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

/// A plane [h, w] under windows of kernel × kernel that give [oh, ow].
struct PoolPlane {
  bool bf16 = false;
  std::int64_t h = 0, w = 0, oh = 0, ow = 0, kernel = 0, stride = 0, padding = 0;

  /// Whether a place is in two windows or more.
  bool overlaps() const { return stride < kernel; }
};

DECLARE_BY_ISA(
    /// y and `index` from x.
    void max_pool_plane(const PoolPlane& plane, const void* x, void* y, std::int32_t* index);
    /// dx from dy and `index`. `sums`: h · w floats, for bf16 with windows that overlap.
    void max_pool_grad_plane(const PoolPlane& plane, const void* dy, const std::int32_t* index, void* dx, float* sums);
    void average_pool_plane(const PoolPlane& plane, const void* x, void* y);)

}  // namespace trainer::kernels::cpu
