// How compressed gradients lie in memory: one place for the planner that sizes the buffers, the kernels that fill and
// read them (kernels/compression.h) and the tests. Every part begins at a multiple of 64 bytes, so that chunks can be
// cut and joined by collectives; padding is zeros.
//
//   int8   a chunk of n elements: codes i8 [n], padding, scales f32 [⌈n / 256⌉], padding. A scale is for a block of
//          256 elements; the last block of a chunk may be shorter. A buffer of k chunks holds k slices of n elements
//          each, one after the other.
//
//   top k  indices i32 [k], ascending, padding, values f32 [k], padding.
#pragma once

#include <cstdint>

namespace trainer {

inline constexpr std::int64_t kInt8Block = 256;  ///< elements that share a scale

constexpr std::int64_t padded_to_64(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

constexpr std::int64_t int8_blocks(std::int64_t elements) { return (elements + kInt8Block - 1) / kInt8Block; }
/// Where the scales of a chunk of so many elements begin, in bytes from its codes.
constexpr std::int64_t int8_scales_offset(std::int64_t elements) { return padded_to_64(elements); }
/// Bytes of a chunk of so many elements.
constexpr std::int64_t int8_bytes(std::int64_t elements) {
  return int8_scales_offset(elements) + padded_to_64(4 * int8_blocks(elements));
}

/// Where the values begin, in bytes from the indices.
constexpr std::int64_t top_k_values_offset(std::int64_t k) { return padded_to_64(4 * k); }
/// Bytes of k pairs.
constexpr std::int64_t top_k_bytes(std::int64_t k) { return 2 * padded_to_64(4 * k); }

}  // namespace trainer
