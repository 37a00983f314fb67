// Normalisation of channels. x is [n, ch, ...]: for each channel n runs of `places` elements.
//
//   batch_norm             x c, weight c [ch], bias c [ch], running_mean f32 [ch], running_var f32 [ch], residual c?
//                          → y c (may be x or residual)
//     y = (x − running_mean) / √(running_var + eps) · weight + bias, + residual; with relu max(y, 0)
//   batch_norm_sums        x c → sums f64 [2, ch]: Σ x, Σ x²
//   batch_norm_apply       x c, sums, weight c, bias c, residual c? → y c (may be residual)
//     mean = Σ x / count, var = Σ x² / count − mean², rstd = 1 / √(var + eps), n = (x − mean) rstd, y = n · weight +
//     bias, + residual; with relu max(y, 0)
//   batch_norm_update      sums, running_mean f32 [ch] (in place), running_var f32 [ch] (in place)
//     running_mean += momentum (mean − running_mean), running_var += momentum (var · count / (count − 1) − running_var)
//   batch_norm_grad_sums   dy c, x c, sums, weight c?, bias c? → grad_sums f64 [2, ch]: Σ dy, Σ dy n; dweight r [ch]?,
//     dbias r [ch]?: the second and the first of them
//   batch_norm_grad        dy c, x c, weight c, sums, grad_sums, bias c? → dx c (may be dy or x)
//     dx = weight · rstd (dy − Σ dy / count − n Σ dy n / count)
//   With relu (of an apply without residual) both take dy as 0 where n · weight + bias is not above 0. They compute
//   that as apply does, to the bit, so that neither y nor a masked dy is read or kept.
//
// Sums are f64, so that Σ x² / count − mean² keeps the precision of f32 until the mean is 10⁴ deviations off. `count`:
// elements of a channel that the sums are of, which may be those of several ranks; `own` says that they are this
// rank's alone, which kernels need not know. Attributes: eps; momentum (batch_norm_update); weight, bias (of
// batch_norm_grad_sums: whether the gradient is wanted), accumulate (adds to dweight and dbias).
#pragma once

#include <cstdint>

#include "engine/core/signature.h"

namespace trainer::kernels {

/// x as [samples, channels, places].
struct BatchNormSizes {
  std::int64_t samples = 0, channels = 0, places = 1;
  std::int64_t elements() const { return samples * channels * places; }
};
/// Of operand `x`, after operands were checked: those of x's size, of a channel each, and of sums. Raises Bug where the
/// shapes do not fit.
BatchNormSizes batch_norm_sizes(const Signature& signature, int x);

}  // namespace trainer::kernels
