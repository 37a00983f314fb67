// Problem: one matrix product C[m, n] = A[m, k] · B[k, n], C row-major. Plain data: the sources that are compiled for
// several instruction sets include it.
#pragma once

#include <cstdint>

namespace trainer::kernels::cpu::gemm {

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return divide_up(a, b) * b; }
constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

constexpr std::int64_t most(std::int64_t a, std::int64_t b) { return a < b ? b : a; }

/// Columns of a strip of B: two AMX tiles, two AVX-512 vectors.
inline constexpr std::int64_t kStrip = 32;

/// How the elements of an operand lie. A: `rows` has a(i, p) = a[i·lda + p], `columns` a[p·lda + i]. B: `rows` has
/// b(p, j) = b[p·ldb + j], `columns` b[j·ldb + p]. As prepared by the product itself, with ldb unused: `strips` as
/// pack_strips leaves them (packed.h), `blocks` as widen_strips does (widen_loops.h).
enum class Order : std::uint8_t { rows, columns, strips, blocks };

/// W [out, in] in parts (engine/core/quantized.h), which is B: by columns in x·Wᵀ, by rows in dy·W.
struct QuantizedMatrix {
  std::int64_t blocks = 0;  ///< of a row; 0: B is not quantized
  bool nf4 = false;         ///< else int8
  const unsigned char *codes = nullptr, *scales = nullptr;
  const float* groups = nullptr;  ///< of nf4
};

struct Problem {
  std::int64_t m = 0, n = 0, k = 0;
  bool inputs_are_f32 = false;  ///< A, B and bias; else bf16
  const void* a = nullptr;
  std::int64_t lda = 0;
  Order a_order = Order::rows;
  const void* b = nullptr;
  std::int64_t ldb = 0;
  Order b_order = Order::columns;
  QuantizedMatrix quantized{};  ///< in place of b and ldb
  void* c = nullptr;
  std::int64_t ldc = 0;
  bool c_is_f32 = false;         ///< else bf16
  const void* bias = nullptr;    ///< [n], added to every row; or null
  const void* addend = nullptr;  ///< added to C, and lies as C does: C itself, which accumulates, or another matrix
  bool stream = false;           ///< C goes past the caches; REQUIRES: c and its rows at multiples of 64 bytes
};

/// A piece of C that one thread computes: rows [row, row_end) of the strips [strip, strip_end) of C.
struct Part {
  std::int64_t row = 0, row_end = 0, strip = 0, strip_end = 0;
};

}  // namespace trainer::kernels::cpu::gemm
