// The table of libtrainer_cuda.so.
#include "engine/run/gpu_library.h"

namespace trainer {

extern "C" const GpuLibrary* trainer_gpu_library() {
  static constexpr GpuLibrary kLibrary{kGpuLibraryBuild, has_nccl,  num_gpus,     describe_gpu,   find_cuda,
                                       cuda_device,      gpu_bench, nccl_version, nccl_unique_id, nccl_communicator};
  return &kLibrary;
}

}  // namespace trainer
