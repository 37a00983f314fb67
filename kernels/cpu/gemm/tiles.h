// Tiles: the eight AMX tile registers, each 16 rows of 64 bytes, and the instructions the products need of them.
// A source compiled for AMX gets the registers, any other the same in memory: so the algorithm above them is tested on
// machines without AMX too. Source: Intel ISA Extensions reference, chapter 3 (TILELOADD, TDPBF16PS, TILESTORED).
#pragma once

#include <cstdint>

#include "kernels/bf16.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

// In assembler: the compilers' intrinsics take tile numbers as literals only.
/// Bytes from one row of a tile to the next are `stride`. Rows hold 16 f32, or 16 pairs of bf16.
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)

struct Tiles {
  /// All eight of full size, for the calling thread, until `release`.
  static void configure() {
    struct alignas(64) {
      std::uint8_t palette, start_row, reserved[14];
      std::uint16_t row_bytes[16];
      std::uint8_t rows[16];
    } configuration{};
    configuration.palette = 1;
    for (int t = 0; t < 8; ++t) configuration.row_bytes[t] = 64, configuration.rows[t] = 16;
    asm volatile("ldtilecfg %0" ::"m"(configuration));
  }
  static void release() { asm volatile("tilerelease" ::: "memory"); }
  template <int kTile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  static void load(const void* from, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  /// The same of what is not read again soon: it leaves the rest of L1 where it is.
  template <int kTile>
  static void load_once(const void* from, std::int64_t stride) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void store(void* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  /// C[i][j] += Σ over pairs p of A[i][p] · B[p][j].
  template <int kC, int kA, int kB>
  static void multiply_add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};

#else

struct Tiles {
  static void configure() {}
  static void release() {}
  template <int kTile>
  static void zero() {
    __builtin_memset(words[kTile], 0, sizeof words[kTile]);
  }
  template <int kTile>
  static void load(const void* from, std::int64_t stride) {
    for (int i = 0; i < 16; ++i) __builtin_memcpy(words[kTile][i], static_cast<const char*>(from) + i * stride, 64);
  }
  template <int kTile>
  static void load_once(const void* from, std::int64_t stride) {
    load<kTile>(from, stride);
  }
  template <int kTile>
  static void store(void* to, std::int64_t stride) {
    for (int i = 0; i < 16; ++i) __builtin_memcpy(static_cast<char*>(to) + i * stride, words[kTile][i], 64);
  }
  template <int kC, int kA, int kB>
  static void multiply_add() {
    for (int i = 0; i < 16; ++i)
      for (int p = 0; p < 16; ++p)
        for (int j = 0; j < 16; ++j) {
          const std::uint32_t a = words[kA][i][p], b = words[kB][p][j];
          float c = __builtin_bit_cast(float, words[kC][i][j]);
          c += low(a) * low(b);
          c += high(a) * high(b);
          words[kC][i][j] = __builtin_bit_cast(std::uint32_t, c);
        }
  }

 private:
  static float low(std::uint32_t pair) { return __builtin_bit_cast(float, pair << 16); }
  static float high(std::uint32_t pair) { return __builtin_bit_cast(float, pair & 0xFFFF0000u); }
  static inline thread_local std::uint32_t words[8][16][16];
};

#endif

}  // namespace
}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
