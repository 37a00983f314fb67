// Loops file: see math_check.h.
#include "kernels/cpu/runtime/math_check.h"

#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

template <typename F>
void apply(const float* x, float* y, std::int64_t count, F function) {
  for_each_vector(0, count, [&](std::int64_t i, auto load, auto store) { store(y + i, function(load(x + i))); });
}

}  // namespace

void apply_function(Function function, const float* x, float* y, std::int64_t count) {
  switch (function) {
    case Function::exp:
      return apply(x, y, count, [](F32 v) { return exp(v); });
    case Function::log:
      return apply(x, y, count, [](F32 v) { return log(v); });
    case Function::tanh:
      return apply(x, y, count, [](F32 v) { return tanh(v); });
    case Function::erf:
      return apply(x, y, count, [](F32 v) { return erf(v); });
    case Function::sigmoid:
      return apply(x, y, count, [](F32 v) { return sigmoid(v); });
    case Function::reciprocal:
      return apply(x, y, count, [](F32 v) { return reciprocal(v); });
  }
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
