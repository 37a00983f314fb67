// Loops file (vec.h).
#include "kernels/cpu/experts/weigh_loops.h"

#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

template <typename T>
void weigh(const T* x, const float* weights, T* y, std::int64_t columns, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const F32 weight = splat(weights[row]);
    for_each_vector(row * columns, (row + 1) * columns,
                    [&](std::int64_t i, auto load_x, auto store_y) { store_y(y + i, load_x(x + i) * weight); });
  }
}

template <typename T>
void dot(const T* a, const T* b, float* dots, std::int64_t columns, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row)
    dots[row] = sum(sum_of(columns, [&](std::int64_t i, auto load_any) {
      return load_any(a + row * columns + i) * load_any(b + row * columns + i);
    }));
}

}  // namespace

void weigh_rows(bool bf16, const void* x, const float* weights, void* y, std::int64_t columns, std::int64_t begin,
                std::int64_t end) {
  if (bf16) return weigh(static_cast<const Bf16*>(x), weights, static_cast<Bf16*>(y), columns, begin, end);
  return weigh(static_cast<const float*>(x), weights, static_cast<float*>(y), columns, begin, end);
}

void dot_rows(bool bf16, const void* a, const void* b, float* dots, std::int64_t columns, std::int64_t begin,
              std::int64_t end) {
  if (bf16) return dot(static_cast<const Bf16*>(a), static_cast<const Bf16*>(b), dots, columns, begin, end);
  return dot(static_cast<const float*>(a), static_cast<const float*>(b), dots, columns, begin, end);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
