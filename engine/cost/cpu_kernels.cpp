// Kernels on a CPU: the roofline, shared by the ranks of a node.
#include <algorithm>

#include "engine/cost/kernel_times.h"
#include "engine/ops/op_def.h"

namespace trainer::cost {
namespace {

double figure(const std::map<std::string, Figure>& figures, const std::string& name, double otherwise) {
  const auto at = figures.find(name);
  return at == figures.end() ? otherwise : at->second.value;
}

}  // namespace

Estimate cpu_kernel(const MachineModel& machine, const Signature& signature, int threads, int ranks) {
  const DeviceModel& device = machine.device;
  const Cost cost = cost_of(signature);
  const auto peak = device.peak.find(signature.operands.empty() ? DType::f32 : signature.operands.front().dtype);
  const double rate = peak == device.peak.end() ? device.peak.begin()->second.value : peak->second.value;
  const double cores = std::clamp(static_cast<double>(threads) / std::max(1, device.units), 0.0, 1.0);
  const double compute = cost.flops / (cores * rate * figure(device.achievable, "matmul", 0.8)) * 1e6;
  const double memory = (cost.bytes_read + cost.bytes_written) * ranks / (device.memory_bandwidth.value * figure(device.achievable, "memory", 0.85)) * 1e6;
  return {std::max(compute, memory) + device.launch_us.value, 0.2, compute > memory ? Bound::compute : Bound::memory};
}

}  // namespace trainer::cost
