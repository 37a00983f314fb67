// A build without the CUDA Toolkit.
#include "engine/core/error.h"
#include "engine/run/cuda_device.h"

namespace trainer {

bool has_cuda() { return false; }

int num_gpus() { return 0; }

std::optional<Gpu> describe_gpu(int) { return std::nullopt; }

CudaFound find_cuda() {
  CudaFound found;
  found.no_gpu = "this build has no CUDA";
  return found;
}

std::unique_ptr<DeviceBackend> cuda_device(const CudaOptions&) {
  throw IoError("this build has no CUDA: install the CUDA Toolkit, and build again");
}

}  // namespace trainer
