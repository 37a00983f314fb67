// A build without the CUDA Toolkit.
#include "engine/core/error.h"
#include "engine/run/cuda_device.h"
#include "engine/run/gpu_bench.h"

namespace trainer {

bool has_cuda() { return false; }

int num_gpus() { return 0; }

std::optional<Gpu> describe_gpu(int) { return std::nullopt; }

CudaFound find_cuda() {
  CudaFound found;
  found.no_gpu = "this build has no CUDA";
  return found;
}

namespace {
[[noreturn]] void refuse() { throw IoError("this build has no CUDA: install the CUDA Toolkit, and build again"); }
}  // namespace

std::unique_ptr<DeviceBackend> cuda_device(const CudaOptions&) { refuse(); }

std::unique_ptr<GpuBench> gpu_bench(int) { refuse(); }

}  // namespace trainer
