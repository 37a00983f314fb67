// How each section of a hardware file is printed.
#include "tools/calibrate/hardware_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>

#include "engine/core/error.h"

namespace trainer::tools {

namespace fs = std::filesystem;

namespace {

std::string number(double value) { return fmt::format("{:.4g}", value); }

}  // namespace

std::string figure_text(const cost::Figure& one) {
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

std::string work_row(const cost::MeasuredWork& one) {
  return fmt::format("    - {{work: {}, dtype: {}, threads: {}, ranks: {}, sizes: [{}], rate: {}}}\n", one.work,
                     name_of(one.dtype), one.threads, one.ranks, fmt::join(one.sizes, ", "), figure_text(one.rate));
}

std::string hardware_text(const cost::MachineModel& machine) {
  const cost::DeviceModel& device = machine.device;
  std::string out =
      "# Measured by `trainer calibrate`. A job takes it by cluster.hardware, or as this machine's own where it is in "
      "its place.\n";
  out += fmt::format("description: {}\n", quoted(machine.description));
  out += "measured_here: true\ndevice:\n  kind: cpu\n";
  out += fmt::format("  memory: {}\n  reserve: {}\n  memory_bandwidth: {}\n  cache: {}\n  units: {}\n  launch_us: {}\n",
                     device.memory_bytes, device.reserve_bytes, figure_text(device.memory_bandwidth),
                     device.cache_bytes, device.units, figure_text(device.launch_us));
  out += "  peak:\n";
  for (const auto& [dtype, peak] : device.peak) out += fmt::format("    {}: {}\n", name_of(dtype), figure_text(peak));
  out += "  achievable:\n";
  for (const auto& [work, share] : device.achievable) out += fmt::format("    {}: {}\n", work, figure_text(share));
  out += "  measured:\n";
  for (const cost::MeasuredWork& one : device.measured) out += work_row(one);
  if (device.measured.empty()) out += "    []\n";
  out += fmt::format(
      "devices_per_node: {}\nlinks:\n  inside: {{kind: {}, bandwidth: {}, latency_us: {}, achievable: {}}}\n",
      machine.devices_per_node, machine.inside.kind, figure_text(machine.inside.bandwidth),
      figure_text(machine.inside.latency_us), figure_text(machine.inside.achievable));
  out +=
      fmt::format("overlap_slowdown: {:.3f}\nhost_memory: {}\n", machine.overlap_slowdown, machine.host_memory_bytes);
  if (machine.disk)
    out += fmt::format("disk: {{read: {}, write: {}}}\n", figure_text(machine.disk->read),
                       figure_text(machine.disk->write));
  out += "collectives:\n";
  for (const cost::MeasuredCollective& one : machine.collectives)
    out += fmt::format("  - {{collective: {}, backend: {}, ranks: {}, bytes: {}, us: {}}}\n", one.collective,
                       one.backend, one.ranks, one.bytes, figure_text(one.us));
  if (machine.collectives.empty()) out += "  []\n";
  return out;
}

void write_hardware_file(const std::string& path, const std::string& text) {
  const fs::path target(path);
  if (target.has_parent_path()) fs::create_directories(target.parent_path());
  const std::string temporary = path + ".new";
  {
    std::ofstream file(temporary, std::ios::binary);
    file << text;
    file.flush();
    if (!file) throw IoError("cannot write " + temporary);
  }
  std::error_code error;
  fs::rename(temporary, target, error);
  if (error) throw IoError("cannot write " + path + ": " + error.message());
}

}  // namespace trainer::tools
