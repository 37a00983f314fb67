// trainer calibrate --device cuda, and the kernels of jobs that both kinds of calibration measure.
#pragma once

#include <string>
#include <vector>

#include "engine/core/signature.h"
#include "engine/job/job.h"

namespace trainer::tools {

/// The kernels of the jobs' steps, each once, that run on their devices; of classes of work whose names begin as one of
/// `only` (empty: all). Throws JobError, also for a job of another kind of device.
std::vector<Signature> kernels_of_jobs(const std::vector<std::string>& jobs, const std::vector<std::string>& only,
                                       Device device);

struct GpuCalibration {
  std::string out;
  std::vector<std::string> jobs;
  std::vector<std::string> only;
  bool json = false;
};

/// Returns the exit code. Throws UsageError where nothing says what to measure, or where no hardware file is for the
/// GPU.
int calibrate_gpu(const GpuCalibration& calibration);

}  // namespace trainer::tools
