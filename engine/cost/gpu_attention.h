// Time of fused attention (FlashAttention and its like) on a GPU: products of tiles that never leave the
// multiprocessor, and one exponential for each score.
#pragma once

#include <cstdint>

#include "engine/core/fused_attention.h"
#include "engine/cost/estimate.h"
#include "engine/cost/machine_model.h"

namespace trainer::cost {

struct Attention {
  std::int64_t batch = 0, heads = 0, queries = 0, keys = 0,
               head_dim = 0;  ///< queries: all, or a part of those that see the keys
  bool causal = true;
  std::int64_t window = 0;  ///< keys that a causal query sees at most; 0: all before it
  bool backward = false;
  bool own = false;          ///< our own kernels, whatever the device has for attention elsewhere
  bool fused = false;        ///< cuDNN's kernel takes it, where the device has trainer's kernels
  FusedGradPieces pieces{};  ///< of the gradient by cuDNN's kernel
  DType dtype = DType::bf16;
  double bytes = 0;  ///< of all operands, once
};

/// Without the launch.
Estimate gpu_attention(const DeviceModel& device, const Attention& attention);

}  // namespace trainer::cost
