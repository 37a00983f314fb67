#include "engine/train/device.h"

#include "engine/core/check.h"
#include "engine/run/cuda_device.h"
#include "engine/run/stream_communicator.h"

namespace trainer {

std::unique_ptr<DeviceBackend> device_for(const Job& job, const Communicator& communicator, int threads) {
  if (job.cluster.device != Device::cuda) return cpu_device(threads);
  const auto* of_gpus = dynamic_cast<const StreamCommunicator*>(&communicator);
  CHECK(of_gpus != nullptr || communicator.world_size() == 1, "ranks of GPUs have a communicator of GPUs");
  return cuda_device({.ordinal = of_gpus != nullptr ? of_gpus->device_ordinal() : 0});
}

}  // namespace trainer
