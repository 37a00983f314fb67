// The emulated GPU from the tests' side: how adversarial it is, how large, and what happened. The CUDA runtime,
// cuBLASLt and NCCL are emulated by their own functions, declared by the Toolkit's headers and defined here for host
// memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace trainer::emulated {

/// Of every thread that uses devices from now on.
struct Settings {
  std::uint64_t order = 0;  ///< of threads in a block (Block::run), of blocks, and of streams: 0 is the order of issue
  int devices = 1;
  int capability = 90;
  int units = 132;
  std::int64_t memory = std::int64_t{1} << 34;  ///< bytes of each device
  const char* name = "NVIDIA H200";
  int work_us = 0;            ///< that each piece of work on a stream takes at least
  bool cudnn = false;         ///< whether devices that are opened have cuDNN
  int parts_fail = 0;         ///< cuBLASLt's products whose sum is in so many parts, although its heuristic names them
  bool windows_fail = false;  ///< NCCL's, after it has accepted their registration
};
Settings& settings();

/// Since the start, over all devices.
struct Counts {
  std::int64_t kernels = 0, copies = 0, host_functions = 0, graphs = 0, events = 0, waits = 0;
  std::int64_t allocated = 0;  ///< bytes at present
};
Counts counts();
/// Runs of cuDNN's kernels since the start.
std::int64_t cudnn_runs();

/// Something on a stream: called again and again until it returns true. Libraries put their work there.
using Work = std::function<bool()>;
cudaError_t enqueue(cudaStream_t stream, Work work, const std::string& what);
/// The capture that a stream is part of, or null.
std::shared_ptr<const void> capture_of(cudaStream_t stream);

}  // namespace trainer::emulated
