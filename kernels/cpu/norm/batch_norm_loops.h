// Loops over the channels of a batch norm: formulas in kernels/batch_norm.h. Pointers to c are f32 or, if `bf16`, bf16.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

/// x, dy, residual and `to` are [samples, channels, places].
struct ChannelArgs {
  bool bf16 = false;
  bool relu = false;
  std::int64_t samples = 0, channels = 0, places = 0;
  const void* x = nullptr;
  const void* dy = nullptr;        ///< or null
  const void* residual = nullptr;  ///< or null
  void* to = nullptr;
};

/// z = (x − centre) · scale + shift.
struct ChannelScales {
  const float* centre = nullptr;
  const float* scale = nullptr;
  const float* shift = nullptr;
};

// An array with a number for each channel starts with that of channel `begin`. With relu the gradient dy counts as 0
// where z is not above 0.
DECLARE_BY_ISA(
    /// first = Σ x, second = Σ x².
    void channel_sums(const ChannelArgs& args, double* first, double* second, std::int64_t begin, std::int64_t end);
    /// first = Σ dy, second = Σ dy (x − centre). `of` is read with relu only.
    void channel_products(const ChannelArgs& args, const ChannelScales& of, const double* centre, double* first,
                          double* second, std::int64_t begin, std::int64_t end);
    /// to = z + residual, with relu max(to, 0).
    void scale_channels(const ChannelArgs& args, const ChannelScales& of, std::int64_t begin, std::int64_t end);
    /// to = dy · scale + (x − centre) · slope + term. The shift is read with relu only.
    void combine_channels(const ChannelArgs& args, const ChannelScales& of, const float* slope, const float* term,
                          std::int64_t begin, std::int64_t end);)

}  // namespace trainer::kernels::cpu
