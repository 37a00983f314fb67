// The packed form of a bf16 matrix B[k, n], one for all instruction sets: strips of 32 columns; in a strip, a line for
// each pair of steps (2p, 2p + 1) that holds the 32 columns' pairs side by side, 128 bytes. So `vdpbf16ps` and AMX
// tiles (16 lines of 16 pairs) take it as it lies. Columns are padded to whole strips and steps to multiples of 32 (a
// tile) with zeros.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm/problem.h"

namespace trainer::kernels::cpu::gemm {

/// Steps of a strip, padding included.
constexpr std::int64_t packed_steps(std::int64_t k) { return (k + 31) / 32 * 32; }
constexpr std::int64_t packed_strips(std::int64_t n) { return (n + kStrip - 1) / kStrip; }
/// Words (pairs of bf16) of a strip.
constexpr std::int64_t packed_strip_words(std::int64_t k) { return packed_steps(k) / 2 * kStrip; }
constexpr std::int64_t packed_bytes(std::int64_t k, std::int64_t n) {
  return packed_strips(n) * packed_strip_words(k) * 4;
}

/// What to pack: `rows` has b(p, j) = from[p·ld + j], `columns` from[j·ld + p].
struct Packing {
  std::int64_t k = 0, n = 0;
  const void* from = nullptr;  ///< bf16
  std::int64_t ld = 0;
  Order order = Order::rows;
  void* to = nullptr;  ///< packed_bytes(k, n), 64-byte aligned
};

}  // namespace trainer::kernels::cpu::gemm

namespace trainer::kernels::cpu {
// pack_loops.cpp, for each instruction set: packs the strips [strip, strip_end).
namespace portable {
void pack_strips(const gemm::Packing& packing, std::int64_t strip, std::int64_t strip_end);
}
namespace avx2 {
void pack_strips(const gemm::Packing& packing, std::int64_t strip, std::int64_t strip_end);
}
namespace avx512 {
void pack_strips(const gemm::Packing& packing, std::int64_t strip, std::int64_t strip_end);
}
}  // namespace trainer::kernels::cpu
