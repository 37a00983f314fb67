// By cudaMalloc, or by the communicator.
#include "engine/run/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <exception>

#include "engine/core/error.h"
#include "kernels/cuda/runtime/runtime.h"

namespace trainer {
namespace {

using kernels::cuda::check;

std::string gib(std::int64_t bytes) {
  const std::string text = std::to_string(static_cast<double>(bytes) / (std::int64_t{1} << 30));
  return text.substr(0, text.find('.') + 3) + " GiB";
}

}  // namespace

std::int64_t free_device_bytes() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<std::int64_t>(free);
}

DeviceMemory::DeviceMemory(std::int64_t bytes, const std::string& device, StreamCommunicator* communicator, int rank,
                           std::int64_t layout)
    : bytes_(std::max<std::int64_t>(bytes, 1)), communicator_(communicator) {
  const std::int64_t free = free_device_bytes();
  if (free < bytes_)
    throw IoError("rank " + std::to_string(rank) + ": " + device + " has " + gib(free) + " (" + std::to_string(free) +
                  " bytes) of memory free and the plan takes " + gib(bytes_) + " (" + std::to_string(bytes_) +
                  " bytes); something else is using this GPU, or cluster.hardware describes a larger one");
  if (communicator_ != nullptr) {
    base_ = static_cast<std::byte*>(communicator_->allocate(bytes_));
    communicator_->register_memory(base_, bytes_, layout);
  } else {
    void* at = nullptr;
    check(cudaMalloc(&at, static_cast<std::size_t>(bytes_)), "cudaMalloc");
    base_ = static_cast<std::byte*>(at);
  }
}

DeviceMemory::~DeviceMemory() {
  if (communicator_ == nullptr) {
    cudaFree(base_);
    return;
  }
  try {
    communicator_->unregister_memory(base_);
    communicator_->release(base_);
  } catch (const std::exception&) {
    // The communicator was aborted, and took its memory with it.
  }
}

}  // namespace trainer
