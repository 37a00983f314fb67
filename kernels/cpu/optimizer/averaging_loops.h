// Loops of kernels/averaging.h.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

struct OuterArgs {
  float* anchor = nullptr;
  float* momentum = nullptr;
  const float* gradient = nullptr;
  float* master = nullptr;
  float factor = 1, lr = 1, mu = 0;
  bool nesterov = false;
};

DECLARE_BY_ISA(void outer_gradient(const float* anchor, const float* master, float* gradient, std::int64_t begin,
                                   std::int64_t end);
               void outer_step(const OuterArgs& args, std::int64_t begin, std::int64_t end);
               void apply_delayed(float* master, const float* snapshot, const float* average, float factor,
                                  std::int64_t begin, std::int64_t end);)

}  // namespace trainer::kernels::cpu
