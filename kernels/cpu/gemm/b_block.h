// A widened block of B, for loops files: columns that are multiplied together lie together, [steps][kColumns]. So what
// the innermost loop reads of B again and again is at most 16 KiB without gaps, which stays in L1 beside a panel of A.
#pragma once

#include "kernels/cpu/gemm/blocking.h"
#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

constexpr int kVectors = 2;                  // of a row of C in registers
constexpr int kColumns = kVectors * kLanes;  // of C at a time

/// Columns [j, j + kLanes) of step p of the block. REQUIRES: j is a multiple of kLanes.
VEC_INLINE float* b_at(float* block, std::int64_t p, std::int64_t j) {
  return block + j / kColumns * (gemm::kMaxDepth * kColumns) + p * kColumns + j % kColumns;
}

}  // namespace
}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
