// GpuBench: times of single kernels and of copies on a GPU, without a plan. For `trainer calibrate`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/core/signature.h"

namespace trainer {

class GpuBench {
 public:
  /// A kernel, and what it is measured with.
  struct Case {
    Signature signature;
    /// What each operand is filled with, as often as it takes; empty: zeros.
    std::vector<std::span<const std::byte>> contents;
    /// An operand that stays at its place, as the kernel before has just written it; -1: none.
    int fresh = -1;
    /// The others take turns at places of so many bytes in all, so that no cache holds them.
    std::int64_t rotation_bytes = 0;
    double budget_ms = 4;
  };

  virtual ~GpuBench() = default;
  /// Microseconds from one run to the next, of several batches that are captured and launched as graphs, as those of a
  /// step are. Nothing where the operands and the workspace do not fit into the memory that is free. Throws DataError
  /// where the kernel does not take the contents, IoError where the device fails.
  virtual std::vector<double> kernel_us(const Case& one) = 0;
  /// Microseconds of copies of `bytes` between pinned memory of the host and the GPU.
  virtual std::vector<double> copy_us(std::int64_t bytes, bool to_device) = 0;
};

/// Throws IoError where there is no such GPU, in a build without CUDA always.
std::unique_ptr<GpuBench> gpu_bench(int ordinal);

}  // namespace trainer
