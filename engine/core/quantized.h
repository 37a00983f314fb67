// Quantized matrices: how a frozen weight W [out, in] is held in eight or four bits an element, and which tensors it
// then is. All of them are bytes, so that what shards, gathers and places parameters needs to know nothing of them.
//
// Rows are stored in blocks of 64 columns; the columns behind the last one hold 0.
//   int8  codes u8 [out, 64·b]: two's complement, w ≈ code · scale of the row;
//         scales u8 [out, 4]: an f32 a row, max |w| / 127.
//   nf4   codes u8 [out, 32·b]: four bits an element (kernels/quantized.h), w ≈ value(code) · scale of the block. Byte
//   j
//         of a block has column j in its lower half and column 32 + j in its upper half, so that a vector of bytes is
//         two vectors of neighbours; scales u8 [out, b]: one of eight bits a block, scale ≈ mean + value(code) · spread
//         of its group; groups u8 [out / 256, 8·b]: f32 spread and f32 mean of each group of up to 256 blocks that lie
//         below each other. So a cut of W at multiples of 256 rows, or of 64 columns, parts no group.
// 0.516 bytes an element. Source: Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", NeurIPS 2023,
// section
// 3. There a group is 256 blocks of a row, and the mean is that of the whole matrix.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/core/shape.h"

namespace trainer {

enum class Quantization : std::uint8_t { none, int8, nf4 };

constexpr std::string_view name_of(Quantization quantization) {
  switch (quantization) {
    case Quantization::none:
      return "none";
    case Quantization::int8:
      return "int8";
    case Quantization::nf4:
      return "nf4";
  }
  return "?";
}

inline constexpr std::int64_t kQuantizedBlock = 64;   ///< columns
inline constexpr std::int64_t kQuantizedGroup = 256;  ///< rows

constexpr std::int64_t quantized_blocks(std::int64_t in) { return (in + kQuantizedBlock - 1) / kQuantizedBlock; }

/// A tensor that is a part of a quantized matrix; as `none`, it is none.
struct QuantizedPart {
  enum class Kind : std::uint8_t { codes, scales, groups };
  Kind kind = Kind::codes;
  Quantization as = Quantization::none;
  std::string matrix{};  ///< its name, as checkpoints have it
  Shape shape{};         ///< of the matrix, of all ranks: [out, in]

  explicit operator bool() const { return as != Quantization::none; }
};

constexpr std::string_view name_of(QuantizedPart::Kind kind) {
  switch (kind) {
    case QuantizedPart::Kind::codes:
      return "codes";
    case QuantizedPart::Kind::scales:
      return "scales";
    case QuantizedPart::Kind::groups:
      return "groups";
  }
  return "?";
}

/// The shape of a part of a matrix [out, in], or of rows of it.
inline Shape shape_of(QuantizedPart::Kind kind, Quantization as, std::int64_t out, std::int64_t in) {
  const std::int64_t blocks = quantized_blocks(in);
  const bool nf4 = as == Quantization::nf4;
  switch (kind) {
    case QuantizedPart::Kind::codes:
      return {out, blocks * (nf4 ? kQuantizedBlock / 2 : kQuantizedBlock)};
    case QuantizedPart::Kind::scales:
      return {out, nf4 ? blocks : 4};
    case QuantizedPart::Kind::groups:
      return {(out + kQuantizedGroup - 1) / kQuantizedGroup, 8 * blocks};
  }
  return {};
}

}  // namespace trainer
