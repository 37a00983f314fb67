// How each section of a hardware file is printed.
#include "tools/calibrate/hardware_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace trainer::tools {
namespace {

std::string number(double value) { return fmt::format("{:.4g}", value); }

std::string figure(const cost::Figure& one) {
  return one.spread > 0 ? fmt::format("{{value: {}, spread: {:.3f}}}", number(one.value), std::min(one.spread, 0.999))
                        : number(one.value);
}

// Double quotes keep any text on one line.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string row(const cost::MeasuredWork& one) {
  return fmt::format("    - {{work: {}, dtype: {}, threads: {}, ranks: {}, sizes: [{}], rate: {}}}\n", one.work,
                     name_of(one.dtype), one.threads, one.ranks, fmt::join(one.sizes, ", "), figure(one.rate));
}

}  // namespace

std::string hardware_text(const cost::MachineModel& machine) {
  const cost::DeviceModel& device = machine.device;
  std::string out =
      "# Measured by `trainer calibrate`. A job takes it by cluster.hardware, or as this machine's own where it is in "
      "its place.\n";
  out += fmt::format("description: {}\n", quoted(machine.description));
  out += "measured_here: true\ndevice:\n  kind: cpu\n";
  out += fmt::format("  memory: {}\n  reserve: {}\n  memory_bandwidth: {}\n  cache: {}\n  units: {}\n  launch_us: {}\n",
                     device.memory_bytes, device.reserve_bytes, figure(device.memory_bandwidth), device.cache_bytes,
                     device.units, figure(device.launch_us));
  out += "  peak:\n";
  for (const auto& [dtype, peak] : device.peak) out += fmt::format("    {}: {}\n", name_of(dtype), figure(peak));
  out += "  achievable:\n";
  for (const auto& [work, share] : device.achievable) out += fmt::format("    {}: {}\n", work, figure(share));
  out += "  measured:\n";
  for (const cost::MeasuredWork& one : device.measured) out += row(one);
  if (device.measured.empty()) out += "    []\n";
  out += fmt::format(
      "devices_per_node: {}\nlinks:\n  inside: {{kind: {}, bandwidth: {}, latency_us: {}, achievable: {}}}\n",
      machine.devices_per_node, machine.inside.kind, figure(machine.inside.bandwidth),
      figure(machine.inside.latency_us), figure(machine.inside.achievable));
  out +=
      fmt::format("overlap_slowdown: {:.3f}\nhost_memory: {}\n", machine.overlap_slowdown, machine.host_memory_bytes);
  if (machine.disk)
    out += fmt::format("disk: {{read: {}, write: {}}}\n", figure(machine.disk->read), figure(machine.disk->write));
  out += "collectives:\n";
  for (const cost::MeasuredCollective& one : machine.collectives)
    out += fmt::format("  - {{collective: {}, backend: {}, ranks: {}, bytes: {}, us: {}}}\n", one.collective,
                       one.backend, one.ranks, one.bytes, figure(one.us));
  if (machine.collectives.empty()) out += "  []\n";
  return out;
}

}  // namespace trainer::tools
