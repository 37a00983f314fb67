// Loops over elements: activations, their gradients, add, mul and scale. Pointers are to f32 or, if `bf16`, to bf16.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

enum class Unary { gelu_tanh, gelu_erf, relu, silu, tanh, sigmoid };
enum class Binary { gelu_tanh_grad, gelu_erf_grad, relu_grad, silu_grad, tanh_grad, sigmoid_grad, add, mul };

DECLARE_BY_ISA(
    /// y[i] = f(x[i]) for i in [begin, end).
    void unary(Unary which, bool bf16, const void* x, void* y, std::int64_t begin, std::int64_t end);
    /// y[i] = f(a[i], b[i]); gradients take dy as a and x or y as b.
    void binary(Binary which, bool bf16, const void* a, const void* b, void* y, std::int64_t begin, std::int64_t end);
    /// y[i] = f(a[i], b[i mod period]).
    void binary_repeated(Binary which, bool bf16, const void* a, const void* b, void* y, std::int64_t period, std::int64_t begin,
                         std::int64_t end);
    /// y[i] = factor · x[i].
    void scale(bool bf16, const void* x, float factor, void* y, std::int64_t begin, std::int64_t end);)

}  // namespace trainer::kernels::cpu
