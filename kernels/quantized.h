// quantized_linear: linear (kernels/linear.h) with a frozen weight in parts, which engine/core/quantized.h describes.
// Products take the elements f32 value(code) · scale, or these rounded to c; sums are f32.
//
// quantized_linear             x c [..., in], codes, scales, groups with `nf4`, bias c [out] with `bias`
//                              → y c [..., out]. `partial` as in linear
// quantized_linear_grad_input  dy c [..., out], codes, scales, groups with `nf4` → dx c [..., in]
//
// Columns of the last block behind `in` hold codes of 0. Everything here is constexpr and free of the standard library,
// so that loops files and device code may include it.
#pragma once

#include <cstdint>

namespace trainer::kernels {

// Where operands stand in signatures and calls.
struct QuantizedLinearOperands {
  static constexpr int x = 0, codes = 1, scales = 2, groups = 3;
  static constexpr int bias(bool nf4) { return nf4 ? 4 : 3; }
  static constexpr int y(bool nf4, bool has_bias) { return bias(nf4) + (has_bias ? 1 : 0); }
};
struct QuantizedLinearGradInputOperands {
  static constexpr int dy = 0, codes = 1, scales = 2, groups = 3;
  static constexpr int dx(bool nf4) { return nf4 ? 4 : 3; }
};

/// Values of the codes of nf4, ascending: quantiles of a normal distribution, scaled to [−1, 1]. Source: Dettmers et
/// al., "QLoRA: Efficient Finetuning of Quantized LLMs", NeurIPS 2023, appendix E.
inline constexpr float kNf4Values[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};
inline constexpr int kNf4Zero = 7;  ///< the code of 0

/// Values of the codes of scales: the signed dynamic code of kernels/state_codes.h.
struct ScaleValues {
  float of[256] = {};
};
constexpr ScaleValues make_scale_values() {
  constexpr double kPowers[7] = {1, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6};
  ScaleValues values;
  for (int byte = 1; byte < 256; ++byte) {
    const int magnitude = byte & 0x7F;
    int bits = 6;
    while (bits > 0 && (magnitude >> bits & 1) == 0) --bits;
    const int levels = 1 << bits;
    const double value = kPowers[6 - bits] * (0.1 + 0.9 * (magnitude - levels + 0.5) / levels);
    values.of[byte] = static_cast<float>(byte >= 0x80 ? -value : value);
  }
  values.of[0x80] = 1;
  return values;
}
inline constexpr ScaleValues kScaleValues = make_scale_values();

}  // namespace trainer::kernels
