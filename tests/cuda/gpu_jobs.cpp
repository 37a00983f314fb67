// The models of TinyJobs, compiled for an H100.
#include "tests/cuda/gpu_jobs.h"

#include "engine/compile/compile.h"
#include "engine/compile/hardware.h"
#include "kernels/cuda/target.h"

namespace trainer::tests {

GpuJob gpu_job(const TinyJobs& jobs, const std::string& name, const std::string& run, Overrides overrides, int ranks,
               Purpose purpose) {
  overrides.insert(overrides.begin(), {"cluster={hardware: h100-sxm, devices_per_node: " + std::to_string(ranks) + "}",
                                       "strategy=ddp", "train.batch.micro=2", "train.steps=20"});
  LoadedJob loaded = jobs.load(name, run, overrides);
  const std::string folder = configs_dir() + "/hardware";
  const cost::MachineModel machine = *resolve_cluster(loaded, folder);
  const kernels::cuda::CudaTarget target(machine.device.capability, machine.device.units);
  Hardware hardware{&target, machine.usable_bytes(), 1, nullptr, ranks, machine.usable_bytes()};
  hardware.offload_chunk = 1024;  // so that units of tiny models have several
  CompiledJob compiled = compile(loaded, hardware, purpose);
  return {std::move(loaded), std::move(compiled)};
}

}  // namespace trainer::tests
