// Loops over the channels of a batch norm: formulas in kernels/batch_norm.h. Pointers to c are f32 or, if `bf16`, bf16.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

/// x, dy and `to` are [samples, channels, places].
struct ChannelArgs {
  bool bf16 = false;
  std::int64_t samples = 0, channels = 0, places = 0;
  const void* x = nullptr;
  const void* dy = nullptr;  ///< or null
  void* to = nullptr;
};

// What is given or made of the channels [begin, end) lies at index 0, 1, … of its array.
DECLARE_BY_ISA(
    /// first = Σ x, second = Σ x².
    void channel_sums(const ChannelArgs& args, double* first, double* second, std::int64_t begin, std::int64_t end);
    /// first = Σ dy, second = Σ dy (x − centre).
    void channel_products(const ChannelArgs& args, const double* centre, double* first, double* second,
                          std::int64_t begin, std::int64_t end);
    /// to = (x − centre) · scale + shift.
    void scale_channels(const ChannelArgs& args, const float* centre, const float* scale, const float* shift,
                        std::int64_t begin, std::int64_t end);
    /// to = dy · scale + (x − centre) · slope + shift.
    void combine_channels(const ChannelArgs& args, const float* centre, const float* scale, const float* slope,
                          const float* shift, std::int64_t begin, std::int64_t end);)

}  // namespace trainer::kernels::cpu
