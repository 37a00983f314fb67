// The bf16 product on AMX tiles (tiles_loops.cpp): on the processor's, and emulated for tests.
#pragma once

#include "kernels/cpu/gemm/blocking.h"

namespace trainer::kernels::cpu {
namespace gemm {
inline constexpr std::int64_t kTileRows = 32;  ///< of C in registers
inline constexpr std::int64_t kTileDepth = 512;

constexpr Rules tiles_rules() {
  return {.panel_rows = kTileRows,
          .depth = kTileDepth,
          .step_grain = 32,
          .rows = 640,
          .least_rows = 256,
          .strips_for_a = 48,
          .panel_bytes = kTileRows * kTileDepth * 2,
          .dense = true,
          .b_bytes = kTileDepth / 2 * kStrip * 4};
}
}  // namespace gemm

// Computes `part` of `problem`, whose inputs are bf16. REQUIRES: blocking.thread_bytes() of
// scratch, 64-byte aligned.
namespace amx {
void tiles_part(const gemm::Problem& problem, const gemm::Blocking& blocking, const gemm::Part& part,
                unsigned char* scratch);
}
namespace emulated_amx {
void tiles_part(const gemm::Problem& problem, const gemm::Blocking& blocking, const gemm::Part& part,
                unsigned char* scratch);
}

}  // namespace trainer::kernels::cpu
