// A widened block of B, for loops files: columns that are multiplied together lie together, [depth][kColumns]. So what
// the innermost loop reads of B again and again is at most 16 KiB without gaps, which stays in L1 beside a panel of A.
#pragma once

#include "kernels/cpu/gemm/blocking.h"
#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

constexpr int kVectors = 2;                  // of a row of C in registers
constexpr int kColumns = kVectors * kLanes;  // of C at a time

/// kStrip columns of at most `depth` steps, at `data`.
struct BBlock {
  float* data;
  std::int64_t depth;

  /// Columns [j, j + kLanes) of step p. REQUIRES: j is a multiple of kLanes.
  [[gnu::always_inline]] float* at(std::int64_t p, std::int64_t j) const {
    return data + j / kColumns * depth * kColumns + p * kColumns + j % kColumns;
  }
};

}  // namespace
}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
