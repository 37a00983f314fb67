// The loop of kernels/dropout.h.
#pragma once

#include <cstdint>

#include "kernels/cpu/by_isa.h"

namespace trainer::kernels::cpu {

struct DropoutArgs {
  bool bf16 = false;
  std::uint64_t key = 0;
  std::uint64_t stream = 0;     ///< the sample
  std::uint32_t step = 0;
  std::uint32_t threshold = 0;  ///< words from here on keep
  float scale = 1;
  const void* x = nullptr;      ///< of the sample
  void* y = nullptr;
};

DECLARE_BY_ISA(
    /// The elements [begin, end) of one sample. REQUIRES: begin is a multiple of 64.
    void dropout(const DropoutArgs& args, std::int64_t begin, std::int64_t end);)

}  // namespace trainer::kernels::cpu
