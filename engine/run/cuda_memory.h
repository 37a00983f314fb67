// DeviceMemory: the one allocation of a plan on a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/comm/stream_communicator.h"

namespace trainer {

/// Of the current GPU's memory.
std::int64_t free_device_bytes();

class DeviceMemory {
 public:
  /// On the current GPU, which messages call `device`; of the communicator where there is one: the network reads it
  /// directly. Ranks of equal `layout` have everything at the same offsets. Throws IoError where the GPU has less free,
  /// before it takes any.
  DeviceMemory(std::int64_t bytes, const std::string& device, StreamCommunicator* communicator, int rank,
               std::int64_t layout);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* at(std::int64_t offset) const { return base_ + offset; }
  std::int64_t bytes() const { return bytes_; }

 private:
  const std::int64_t bytes_;
  StreamCommunicator* const communicator_;
  std::byte* base_ = nullptr;
};

}  // namespace trainer
