// Everything of GPUs that the engine asks for, as one table of functions in a shared library of its own,
// libtrainer_cuda.so beside the command. It is opened only when a job or a command needs a GPU: loading
// cuBLASLt, cuDNN and NCCL takes 200 MB and many times as long as planning. So the same command plans where there is no
// CUDA.
//
// In the command, cuda_device.h and stream_communicator.h ask the table (gpu_library.cpp). Tests link what is behind it
// directly.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/comm/stream_communicator.h"
#include "engine/run/cuda_device.h"
#include "engine/run/gpu_bench.h"

namespace trainer {

struct GpuLibrary {
  const char* build = nullptr;  ///< kGpuLibraryBuild of the library
  bool (*has_nccl)() = nullptr;
  int (*num_gpus)() = nullptr;
  std::optional<Gpu> (*describe_gpu)(int ordinal) = nullptr;
  CudaFound (*find_cuda)() = nullptr;
  std::unique_ptr<DeviceBackend> (*cuda_device)(const CudaOptions& options) = nullptr;
  std::unique_ptr<GpuBench> (*gpu_bench)(int ordinal) = nullptr;
  std::string (*nccl_version)() = nullptr;
  std::string (*nccl_unique_id)() = nullptr;
  std::unique_ptr<StreamCommunicator> (*nccl_communicator)(const NcclPlace& place, Connections connections,
                                                           OnLoss on_loss) = nullptr;
};

/// What command and library must have in common: they exchange C++ objects.
inline constexpr const char* kGpuLibraryBuild = "trainer " TRAINER_VERSION ", " __VERSION__;

/// The one name that the library exports.
inline constexpr const char* kGpuLibraryEntry = "trainer_gpu_library";
extern "C" const GpuLibrary* trainer_gpu_library();

}  // namespace trainer
