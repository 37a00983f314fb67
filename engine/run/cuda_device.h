// The GPUs of this machine as devices, and what is known of them without a plan. In the command all of it is behind a
// library that is opened on the first question (gpu_library.h); in a build without the CUDA Toolkit it is there and
// says so (cuda_missing.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/executor.h"

namespace trainer {

struct CudaOptions {
  int ordinal = 0;          ///< of the GPU, as CUDA numbers those that this process may see (CUDA_VISIBLE_DEVICES)
  PrepareOnHost on_host{};  ///< REQUIRES: set, if the plan has kernels on Stream::host
};

/// Whether this build has CUDA.
bool has_cuda();

/// GPUs that this process may use; 0 also where there is no driver, and in a build without CUDA.
int num_gpus();

struct Gpu {
  std::string name;    ///< "NVIDIA H100 80GB HBM3"
  int capability = 0;  ///< 90 for 9.0
  int units = 0;       ///< streaming multiprocessors
  std::int64_t memory_bytes = 0;
  std::string uuid;  ///< "GPU-1f3a…", or of a part of one: the same for all processes that see it
};

/// Makes no context on it, so it takes none of its memory. Nothing where there is no such GPU.
std::optional<Gpu> describe_gpu(int ordinal);

/// What was found of CUDA on this machine.
struct CudaFound {
  std::vector<Gpu> gpus;
  std::string no_gpu;  ///< why there is none, where there is none: "this build has no CUDA", "CUDA driver version is
                       ///< insufficient …"
  std::string driver, runtime, cublaslt;  ///< versions, "13.0"; empty: not there
};
/// Takes no memory of a GPU.
CudaFound find_cuda();

/// A GPU. Programs are issued on streams once, then captured as a graph and replayed (TRAINER_CUDA_GRAPH=0 issues
/// always, as do programs of more than four million launches). Throws IoError where there is no such GPU, in a build
/// without CUDA always. Its load() throws IoError where the GPU has less memory free than the plan takes, before it
/// takes any; there `communicator` is a StreamCommunicator if the plan has more than one rank.
std::unique_ptr<DeviceBackend> cuda_device(const CudaOptions& options);

}  // namespace trainer
