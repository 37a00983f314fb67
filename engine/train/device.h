// Which device a rank runs on: the one place that decides, for training, evaluation, sampling and verification.
#pragma once

#include <memory>

#include "engine/job/job.h"
#include "engine/run/executor.h"

namespace trainer {

/// The device of a rank of a job whose cluster is settled: a share of `threads` threads of this machine's processor, or the GPU that the
/// communicator is of (the first, where it is between threads: then the rank is alone). Throws IoError where that GPU cannot be had.
std::unique_ptr<DeviceBackend> device_for(const Job& job, const Communicator& communicator, int threads);

}  // namespace trainer
