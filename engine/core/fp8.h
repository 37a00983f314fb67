// Products of operands in eight bits (precision.matmul: fp8): e4m3 where the forward pass reads values, e5m2 for
// gradients of them; and the scales that a GPU's library takes for them (cuBLAS library documentation, "Narrow
// precisions usage"). Micikevicius et al., FP8 Formats for Deep Learning (arXiv:2209.05433).
#pragma once

#include <cstdint>
#include <string_view>

namespace trainer {

/// Of how many elements one scale is. Blocks lie along the dim that a product sums over.
enum class Fp8Scales : std::uint8_t {
  none,       ///< no products in eight bits
  tensor,     ///< of a whole operand, f32
  block_128,  ///< f32: of 128 elements of a row, of a weight in the products that are no gradient of it 128 x 128
  block_32,   ///< of 32 elements of a row, a power of two (OCP microscaling formats 1.0, MXFP8)
};

constexpr std::string_view name_of(Fp8Scales scales) {
  switch (scales) {
    case Fp8Scales::none:
      return "none";
    case Fp8Scales::tensor:
      return "tensor";
    case Fp8Scales::block_128:
      return "block_128";
    case Fp8Scales::block_32:
      return "block_32";
  }
  return "";
}

/// The scales of a GPU by its compute capability (90 for 9.0).
constexpr Fp8Scales fp8_scales_of(int capability) {
  switch (capability) {
    case 89:
      return Fp8Scales::tensor;
    case 90:
      return Fp8Scales::block_128;
    case 100:
    case 103:
      return Fp8Scales::block_32;
    default:
      return Fp8Scales::none;
  }
}

/// What the rows, the inputs and the outputs of a linear have to be multiples of: rows of 16 bytes for the tensor
/// cores, whole blocks of 32.
constexpr std::int64_t fp8_multiple(Fp8Scales scales) { return scales == Fp8Scales::block_32 ? 32 : 16; }

}  // namespace trainer
