// Kernels on a CPU: as measured, where a machine was; else the roofline, shared by the ranks of a node.
#include <algorithm>

#include "engine/cost/kernel_times.h"
#include "engine/cost/measured_times.h"
#include "engine/ops/op_def.h"

namespace trainer::cost {
namespace {

// A bf16 product without instructions for it is one in f32.
double peak_of(const DeviceModel& device, DType dtype) {
  const auto peak = device.peak.find(dtype);
  return peak == device.peak.end() ? device.peak.begin()->second.value : peak->second.value;
}

Estimate roofline(const DeviceModel& device, const Work& work, int threads, int ranks) {
  // Ranks that have more threads than there are cores take turns.
  const double cores = std::clamp(static_cast<double>(std::max(1, device.units)) / ranks, 0.0,
                                  static_cast<double>(std::max(1, threads))) /
                       std::max(1, device.units);
  if (counts_flops(work.name)) {
    const double share = device.achievable_or(
        work.name.starts_with("attention") ? (work.name.ends_with("grad") ? "attention_backward" : "attention_forward")
                                           : "matmul",
        device.achievable_or("matmul", 0.8));
    return {work.amount / (cores * peak_of(device, work.dtype) * share) * 1e6 + device.launch_us.value, 0.25,
            Bound::compute};
  }
  const double bandwidth = device.memory_bandwidth.value * device.achievable_or("memory", 0.85);
  return {work.amount * ranks / bandwidth * 1e6 + device.launch_us.value, 0.3, Bound::memory};
}

}  // namespace

Estimate cpu_kernel(const MachineModel& machine, const MeasuredTimes& measured, const Signature& signature, int threads,
                    int ranks, double cold) {
  const Work work = work_of(signature);
  if (const std::optional<Estimate> time = measured.kernel(work, threads, ranks, cold)) return *time;
  return roofline(machine.device, work, threads, ranks);
}

}  // namespace trainer::cost
