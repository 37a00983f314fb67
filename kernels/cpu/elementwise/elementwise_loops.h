// Loops over elements: activations, their gradients, add, mul and scale. Pointers are to f32 or, if `bf16`, to bf16. A
// new function is a struct and a case in elementwise_loops.cpp.
#pragma once

#include <cstdint>

#include "engine/core/op_enum.h"
#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

/// A function of elements: an op's, with what the op's attributes make of it.
struct Function {
  Op op;
  bool exact = false;  ///< of gelu and its gradient: by the error function, not by tanh
  float number = 0;    ///< the op's one number
};

DECLARE_BY_ISA(
    /// y[i] = f(x[i]) for i in [begin, end). All give false, and do nothing, for an op that has no such function here;
    /// an empty range asks.
    bool unary(const Function& f, bool bf16, const void* x, void* y, std::int64_t begin, std::int64_t end);
    /// y[i] = f(a[i], b[i]); gradients take dy as a and x or y as b.
    bool binary(const Function& f, bool bf16, const void* a, const void* b, void* y, std::int64_t begin,
                std::int64_t end);
    /// y[i] = f(gate[i]) · up[i], for f of silu or gelu; and its gradients.
    bool glu(const Function& f, bool bf16, const void* gate, const void* up, void* y, std::int64_t begin,
             std::int64_t end);
    bool glu_grad(const Function& f, bool bf16, const void* dy, const void* gate, const void* up, void* dgate,
                  void* dup, std::int64_t begin, std::int64_t end);
    /// y[i] = f(a[i], b[i mod period]), for add and mul.
    bool binary_repeated(const Function& f, bool bf16, const void* a, const void* b, void* y, std::int64_t period,
                         std::int64_t begin, std::int64_t end);
    /// y[i] = factor · x[i].
    void scale(bool bf16, const void* x, float factor, void* y, std::int64_t begin, std::int64_t end);)

}  // namespace trainer::kernels::cpu
