// Activations, element by element; shapes of all operands are equal, dtypes c (f32 or bf16), arithmetic f32.
//
//   gelu, relu, silu, tanh, sigmoid, softcap            x → y, where y may be x
//   gelu_grad, silu_grad                                dy, x → dx, where dx may be either
//   relu_grad, tanh_grad, sigmoid_grad, softcap_grad    dy, y → dx, where dx may be either
//   glu                                                 gate, up → f(gate) up, where y may be either
//   glu_grad                                            dy, gate, up → dgate = dy up f'(gate), dup = dy f(gate), each
//   of
//                                                       which may be an operand
//
// gelu, `approximate: "tanh"`: x σ(2u) with u = √(2/π) (x + 0.044715 x³), equal to x (1 + tanh u) / 2; `"none"`:
// x Φ(x) = x (1 + erf(x / √2)) / 2. Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
// silu: x σ(x). Source: Elfwing et al., "Sigmoid-Weighted Linear Units", 2017. relu has gradient 0 at 0.
// softcap: cap tanh(x / cap), and its gradient dy (1 − (y / cap)²).
#pragma once

#include "engine/core/signature.h"

namespace trainer::kernels {

/// Whether gelu and gelu_grad of this signature take the tanh form. Raises Bug for another `approximate`.
bool gelu_is_tanh(const Signature& signature);

/// Whether the activation of this glu or glu_grad is gelu, else silu.
bool glu_is_gelu(const Signature& signature);

/// The number in the function of this signature's op: its one real attribute. 0 if it has none.
float activation_number(const Signature& signature);

}  // namespace trainer::kernels
