// The loop of kernels/dropout.h.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

struct DropoutArgs {
  bool bf16 = false;
  std::uint64_t key = 0;
  std::uint32_t step = 0;
  std::uint32_t threshold = 0;  ///< words from here on keep
  float scale = 1;
  // Where element i of x lies in the whole batch: origin + i / columns · stride + i mod columns. Where rows are the two
  // halves of zigzag parts, row r begins at origin + r / 2 · stride, odd ones `odd` further.
  std::int64_t origin = 0, columns = 1, stride = 1;
  bool halves = false;
  std::int64_t odd = 0;
  std::int64_t sample = 1;  ///< elements of a whole sample
  const void* x = nullptr;
  void* y = nullptr;
};

DECLARE_BY_ISA(
    /// The elements [begin, end) of x. Best where pieces of consecutive elements begin at multiples of 4.
    void dropout(const DropoutArgs& args, std::int64_t begin, std::int64_t end);)

}  // namespace trainer::kernels::cpu
