// The functions of vec.h over arrays, for tests and benchmarks of their accuracy and speed.
#pragma once

#include <cstdint>

namespace trainer::kernels::cpu {

enum class Function { exp, log, tanh, erf, sigmoid, reciprocal };

#define TRAINER_DECLARE(isa) \
  namespace isa {            \
  void apply_function(Function function, const float* x, float* y, std::int64_t count); }
TRAINER_DECLARE(portable)
TRAINER_DECLARE(avx2)
TRAINER_DECLARE(avx512)
#undef TRAINER_DECLARE

}  // namespace trainer::kernels::cpu
