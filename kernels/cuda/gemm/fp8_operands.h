// What a product in fp8 has in its launch's workspace: codes of both operands with the dim that is summed over
// innermost, and their scales as cuBLASLt lays them out. No CUDA in this header.
//
// An operand is [outer, inner]. Scales (cuBLAS library documentation, "Scaling factors layouts"):
//   tensor      one f32
//   row_128     of 128 elements of a row, f32 [⌈inner / 128⌉, outer up to a multiple of 4]
//   square_128  of 128 x 128 elements, f32 [⌈outer / 128⌉, ⌈inner / 128⌉ up to a multiple of 4]
//   row_32      of 32 elements of a row, a power of two as e8m0; in tiles of 128 rows by 4 blocks, one row of tiles
//   after
//               the other: of a tile [32, 4, 4] bytes, row r and block b at (r % 32, r / 32, b)
#pragma once

#include <cstdint>

#include "engine/core/fp8.h"

namespace trainer::kernels::cuda {

enum class Fp8Code : std::uint8_t { e4m3, e5m2 };
enum class ScaleBlock : std::uint8_t { tensor, row_128, square_128, row_32 };

constexpr std::int64_t round_up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

/// The rows of an operand; of a weight in the products that are no gradient of it `square`.
constexpr ScaleBlock block_of(Fp8Scales scales, bool square) {
  switch (scales) {
    case Fp8Scales::block_128:
      return square ? ScaleBlock::square_128 : ScaleBlock::row_128;
    case Fp8Scales::block_32:
      return ScaleBlock::row_32;
    default:
      return ScaleBlock::tensor;
  }
}

struct Fp8Operand {
  std::int64_t outer = 0, inner = 0;
  ScaleBlock block = ScaleBlock::tensor;

  std::int64_t scale_bytes() const {
    switch (block) {
      case ScaleBlock::tensor:
        return 4;
      case ScaleBlock::row_128:
        return 4 * (round_up(inner, 128) / 128) * round_up(outer, 4);
      case ScaleBlock::square_128:
        return 4 * (round_up(outer, 128) / 128) * round_up(round_up(inner, 128) / 128, 4);
      case ScaleBlock::row_32:
        return round_up(outer, 128) * round_up(round_up(inner, 32) / 32, 4);
    }
    return 0;
  }
};

/// Where the parts are behind the product's own workspace, in bytes; multiples of 256.
struct Fp8Workspace {
  static constexpr std::int64_t kLargest = 256;  ///< parts of which an operand's largest element is found

  Fp8Operand left, right;
  std::int64_t left_codes = 0, right_codes = 0, left_scales = 0, right_scales = 0, largest = 0, end = 0;

  /// left [rows, inner], right [columns, inner].
  Fp8Workspace(std::int64_t rows, std::int64_t columns, std::int64_t inner, Fp8Scales scales, bool square_right)
      : left{rows, inner, block_of(scales, false)}, right{columns, inner, block_of(scales, square_right)} {
    const auto take = [&](std::int64_t bytes) {
      const std::int64_t at = end;
      end = round_up(end + bytes, 256);
      return at;
    };
    left_codes = take(rows * inner), right_codes = take(columns * inner);
    left_scales = take(left.scale_bytes()), right_scales = take(right.scale_bytes());
    if (scales == Fp8Scales::tensor) largest = take(kLargest * 4);
  }
};

}  // namespace trainer::kernels::cuda
