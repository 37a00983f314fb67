// A convolution in the terms of kernels/conv2d.h, as all ways of computing it take it: oneDNN's primitives (onednn.h),
// one product over unfolded images (unfolded.h), and a product for each sample (pointwise.h).
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"
#include "kernels/cpu/runtime/isa.h"

namespace trainer::kernels::cpu {

struct Convolution {
  std::int64_t n = 0, in = 0, h = 0, w = 0, out = 0, kh = 0, kw = 0, oh = 0, ow = 0, stride = 1;
  std::int64_t padding_rows = 0, padding = 0;  ///< zeros above and below, and on the left and right
  bool bias = false;
  bool accumulate = false;   ///< of parameter gradients
  DType dtype = DType::f32;  ///< of x, weight, y and their gradients
  DType parameter_gradients = DType::f32;
  Isa isa = Isa::portable;

  std::int64_t places() const { return oh * ow; }  ///< of an output plane
  std::int64_t window() const { return kh * kw; }
};

enum class Pass : std::uint8_t { forward, grad_input, grad_weight };

}  // namespace trainer::kernels::cpu
