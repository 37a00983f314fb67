// The coefficients of Muon's Newton–Schulz step, X = a X + (b A + c A²) X with A = X·Xᵀ (muon.h), for loops files and
// device code too.
#pragma once

namespace trainer::kernels {

inline constexpr float kNewtonSchulzA = 3.4445f, kNewtonSchulzB = -4.7750f, kNewtonSchulzC = 2.0315f;

}  // namespace trainer::kernels
