// What is found of CUDA on this machine, without a plan.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <optional>
#include <utility>

#include "engine/run/cuda_device.h"

namespace trainer {
namespace {

std::string version_text(std::size_t major, std::size_t minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

// 13020 is 13.2.
std::string cuda_version(int version) {
  return version == 0
             ? ""
             : version_text(static_cast<std::size_t>(version) / 1000, static_cast<std::size_t>(version) % 1000 / 10);
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (char byte : uuid.bytes) {
    text += "0123456789abcdef"[static_cast<unsigned char>(byte) >> 4];
    text += "0123456789abcdef"[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

}  // namespace

bool has_cuda() { return true; }

int num_gpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::optional<Gpu> describe_gpu(int ordinal) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess) {
    cudaGetLastError();
    return std::nullopt;
  }
  return Gpu{properties.name, properties.major * 10 + properties.minor, properties.multiProcessorCount,
             static_cast<std::int64_t>(properties.totalGlobalMem), uuid_text(properties.uuid)};
}

CudaFound find_cuda() {
  CudaFound found;
  int driver = 0, runtime = 0, count = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess) found.driver = cuda_version(driver);
  if (cudaRuntimeGetVersion(&runtime) == cudaSuccess) found.runtime = cuda_version(runtime);
  const std::size_t products = cublasLtGetVersion();
  found.cublaslt = version_text(products / 10000, products / 100 % 100);
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    found.no_gpu = found.driver.empty()    ? "no driver of NVIDIA's is installed"
                   : status == cudaSuccess ? "the driver sees no GPU"
                                           : cudaGetErrorString(status);
    return found;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal)
    if (std::optional<Gpu> gpu = describe_gpu(ordinal)) found.gpus.push_back(std::move(*gpu));
  return found;
}

}  // namespace trainer
