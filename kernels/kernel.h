// Kernel: an op made ready for one signature on one device. Preparing may allocate, look up and compile;
// running does none of it. A kernel knows operands and attributes, never a plan, a graph or a rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/core/signature.h"

namespace trainer::kernels {

/// One run. Operands are in the order of the signature, each at a multiple of kOperandAlignment, or of its size where
/// it is a single element, unless the op's header says otherwise.
struct Call {
  std::span<void* const> operands;
  void* workspace =
      nullptr;  ///< Target::workspace_bytes(signature) bytes, at a multiple of kBufferAlignment; contents undefined
  std::int64_t origin =
      0;  ///< what differs between ranks: where the piece begins (the op's header says of what); else unused
  void* stream = nullptr;  ///< of a GPU: the cudaStream_t on which the kernel is put; run() returns at once
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  /// REQUIRES: one run at a time for each Kernel object.
  virtual void run(const Call& call) = 0;
};

}  // namespace trainer::kernels
