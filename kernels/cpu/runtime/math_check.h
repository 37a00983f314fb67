// The functions of vec.h over arrays, for tests and benchmarks of their accuracy and speed.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

enum class Function { exp, log, tanh, erf, sigmoid, reciprocal };

DECLARE_BY_ISA(void apply_function(Function function, const float* x, float* y, std::int64_t count);)

}  // namespace trainer::kernels::cpu
