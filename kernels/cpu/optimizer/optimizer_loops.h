// Loops of kernels/optimizer.h.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

struct UpdateArgs {
  bool bf16_gradient = false;
  float* master = nullptr;
  const void* gradient = nullptr;
  float* m = nullptr;       ///< momentum of sgd (null: none), first moment of adam and lion
  float* v = nullptr;       ///< second moment of adam
  Bf16* working = nullptr;  ///< or null
  float factor = 1;
  float keep = 1;            ///< 1 − lr · weight_decay, or 1 for elements that do not decay
  float step = 0;            ///< lr; of adam lr / (1 − β₁ᵗ)
  float beta1 = 0;           ///< momentum of sgd
  float one_less_beta1 = 0;  ///< 1 − β₁, rounded once
  float beta2 = 0;
  float one_less_beta2 = 0;
  float v_scale = 1;  ///< 1 / √(1 − β₂ᵗ)
  float eps = 0;
  bool nesterov = false;

  /// The same of the elements from `first` on.
  UpdateArgs from(std::int64_t first) const {
    UpdateArgs rest = *this;
    rest.master += first;
    rest.gradient = static_cast<const char*>(gradient) + first * (bf16_gradient ? 2 : 4);
    if (m != nullptr) rest.m += first;
    if (v != nullptr) rest.v += first;
    if (working != nullptr) rest.working += first;
    return rest;
  }
};

DECLARE_BY_ISA(void sgd(const UpdateArgs& args, std::int64_t begin, std::int64_t end);
               void adam(const UpdateArgs& args, std::int64_t begin, std::int64_t end);
               void lion(const UpdateArgs& args, std::int64_t begin, std::int64_t end);
               /// muon_momentum, with u in place of the master, the momentum in m and its weight in beta1.
               void muon_momentum(const UpdateArgs& args, std::int64_t begin, std::int64_t end);
               /// square = c · square + b · a, with muon's coefficients.
               void muon_polynomial(const float* a, float* square, std::int64_t begin, std::int64_t end);
               /// Σ x² over [begin, end).
               double sum_squares(bool bf16, const void* x, std::int64_t begin, std::int64_t end);)

}  // namespace trainer::kernels::cpu
