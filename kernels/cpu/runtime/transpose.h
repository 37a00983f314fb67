// A square transposition in registers, for loops files.
#pragma once

#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {

/// Exchanges, for one bit `kWidth` of row and column numbers, the quarters of every 2·kWidth square.
template <int kWidth>
VEC_INLINE void exchange_quarters(U32 (&m)[kLanes]) {
  U32 upper{}, lower{};
  for (int j = 0; j < kLanes; ++j) {
    upper[j] = static_cast<std::uint32_t>(j & kWidth ? kLanes + j - kWidth : j);
    lower[j] = static_cast<std::uint32_t>(j & kWidth ? kLanes + j : j + kWidth);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (i & kWidth) continue;
    const U32 a = m[i], b = m[i + kWidth];
    m[i] = __builtin_shuffle(a, b, upper);
    m[i + kWidth] = __builtin_shuffle(a, b, lower);
  }
}

/// m[i][j] becomes m[j][i].
VEC_INLINE void transpose(U32 (&m)[kLanes]) {
  exchange_quarters<1>(m);
  exchange_quarters<2>(m);
  if constexpr (kLanes >= 8) exchange_quarters<4>(m);
  if constexpr (kLanes >= 16) exchange_quarters<8>(m);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
