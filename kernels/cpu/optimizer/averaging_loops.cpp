// Loops file (vec.h). Bound by memory: outer_step moves 24 bytes for each element, apply_delayed 16, outer_gradient
// 12.
#include "kernels/cpu/optimizer/averaging_loops.h"

#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {

void outer_gradient(const float* anchor, const float* master, float* gradient, std::int64_t begin, std::int64_t end) {
  for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) {
    store(gradient + i, load(anchor + i) - load(master + i));
  });
}

void outer_step(const OuterArgs& a, std::int64_t begin, std::int64_t end) {
  const F32 factor = splat(a.factor), lr = splat(-a.lr), mu = splat(a.mu);
  for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) {
    const F32 anchor = load(a.anchor + i);
    const F32 delta = factor * load(a.gradient + i);
    const F32 momentum = fma(mu, load(a.momentum + i), delta);
    const F32 moved = fma(lr, a.nesterov ? fma(mu, momentum, delta) : momentum, anchor);
    store(a.momentum + i, momentum);
    store(a.anchor + i, moved);
    store(a.master + i, moved);
  });
}

void apply_delayed(float* master, const float* snapshot, const float* average, float factor, std::int64_t begin,
                   std::int64_t end) {
  const F32 by = splat(factor);
  for_each_vector(begin, end, [&](std::int64_t i, auto load, auto store) {
    store(master + i, load(master + i) + fma(by, load(average + i), -load(snapshot + i)));
  });
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
