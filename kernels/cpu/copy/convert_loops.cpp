// Loops file (vec.h).
#include "kernels/cpu/copy/convert_loops.h"

#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

template <typename X, typename Y>
void convert_from(const X* x, Y* y, std::int64_t begin, std::int64_t end) {
  for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) { store(y + i, load(x + i)); });
}

}  // namespace

void convert(bool to_bf16, const void* x, void* y, std::int64_t begin, std::int64_t end) {
  if (to_bf16) return convert_from(static_cast<const float*>(x), static_cast<Bf16*>(y), begin, end);
  return convert_from(static_cast<const Bf16*>(x), static_cast<float*>(y), begin, end);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
