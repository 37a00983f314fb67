// A hardware file: laid over its base, checked against the table of fields, then against the rules that compare
// two of its values.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "engine/cost/machine_fields.h"
#include "engine/cost/machine_model.h"
#include "engine/cost/shipped_cpu.h"
#include "engine/job/aliases.h"
#include "engine/job/bytes.h"
#include "engine/job/check.h"
#include "engine/job/nearest.h"
#include "engine/job/rules.h"
#include "engine/job/schema.h"

namespace trainer::cost {
namespace {

namespace fs = std::filesystem;

constexpr int kMostBases = 8;

[[noreturn]] void refuse(Diagnostic mistake) { throw JobError({std::move(mistake)}); }

// ---- Bases --------------------------------------------------------------------------------------------------------

/// A figure or a link that says what it is takes the place of the base's: half of one and half of another would be
/// neither.
bool replaces(const yaml::Node& over) {
  return !over.is_mapping() || over.find("value") != nullptr || over.find("kind") != nullptr;
}

void lay_over(yaml::Node& base, const yaml::Node& over) {
  for (std::size_t i = 0; i < over.keys.size(); ++i) {
    const std::string& key = over.keys[i].text;
    const auto at = std::ranges::find(base.keys, key, &yaml::Node::text);
    if (at == base.keys.end()) {
      base.keys.push_back(over.keys[i]);
      base.items.push_back(over.items[i]);
      continue;
    }
    const auto index = static_cast<std::size_t>(at - base.keys.begin());
    base.keys[index] = over.keys[i];
    // `device` has a kind of its own, and is no link.
    const bool whole = key != "device" && replaces(over.items[i]);
    whole || !base.items[index].is_mapping() || !over.items[i].is_mapping()
        ? void(base.items[index] = over.items[i])
        : lay_over(base.items[index], over.items[i]);
  }
}

/// The base's path: one of `folder`, or relative to the file that names it.
std::string base_path(const yaml::Node& base, const std::string& file, const std::string& folder) {
  const MachinePath found = find_machine(base.text, fs::path(file).parent_path().string(), folder);
  if (!found.path.empty()) return found.path;
  Diagnostic mistake = base.at("base", "no such hardware; " + found.tried);
  mistake.value = base.brief();
  mistake.suggestion = found.suggestion;
  refuse(std::move(mistake));
}

yaml::Node with_base(yaml::Node tree, const std::string& path, const std::string& folder, int bases) {
  const yaml::Node* base = tree.is_mapping() ? tree.find("base") : nullptr;
  if (base == nullptr || !base->as_string()) return tree;
  if (bases == kMostBases)
    refuse(base->at("base", fmt::format("more than {} bases, one of another: a file is a base of itself", kMostBases)));
  const std::string below = base_path(*base, path, folder);
  yaml::Node whole = with_base(yaml::read_file(below), below, folder, bases + 1);
  if (!whole.is_mapping()) return tree;
  lay_over(whole, tree);
  whole.source = tree.source;  // what the whole lacks is this file's to say
  whole.line = tree.line;
  whole.column = tree.column;
  return whole;
}

// ---- Values -------------------------------------------------------------------------------------------------------

class Reader {
 public:
  Reader(const Checked& checked, const yaml::Node& tree) : checked_(checked), tree_(tree) {}

  /// Of a figure, the path at which its number stands.
  std::string at(const std::string& path) const {
    return checked_.find(path + ".value") != nullptr ? path + ".value" : path;
  }
  bool has(const std::string& path) const { return checked_.sections.contains(path) || checked_.find(path) != nullptr; }

  double number(const std::string& path) const { return checked_.node(at(path)).as_number().value_or(0); }
  std::int64_t bytes(const std::string& path) const { return bytes_of(checked_.node(at(path))).value_or(0); }
  Figure figure(const std::string& path) const {
    return {number(path), checked_.node(path + ".spread").as_number().value_or(0)};
  }
  std::string text(const std::string& path) const { return checked_.node(path).text; }
  bool flag(const std::string& path) const { return checked_.node(path).as_bool().value_or(false); }
  /// Entries of a list of mappings.
  std::size_t entries(const std::string& path) const { return checked_.node(path).items.size(); }
  std::vector<std::int64_t> integers(const std::string& path) const {
    std::vector<std::int64_t> out;
    for (const yaml::Node& item : checked_.node(path).items)
      out.push_back(static_cast<std::int64_t>(item.as_number().value_or(0)));
    return out;
  }
  std::vector<std::string> texts(const std::string& path) const {
    std::vector<std::string> out;
    for (const yaml::Node& item : checked_.node(path).items) out.push_back(item.text);
    return out;
  }

  Diagnostic mistake(const std::string& path, std::string message, std::string allowed = "") const {
    Diagnostic out = mistake_at(tree_, at(path), std::move(message), std::move(allowed));
    if (const CheckedValue* value = checked_.find(at(path))) out.value = value->node.brief();
    return out;
  }

  const Checked& checked() const { return checked_; }

 private:
  const Checked& checked_;
  const yaml::Node& tree_;
};

// ---- Rules --------------------------------------------------------------------------------------------------------

void check_memory(const Reader& r, std::vector<Diagnostic>& mistakes) {
  const std::int64_t memory = r.bytes("device.memory"), reserve = r.bytes("device.reserve"),
                     cache = r.bytes("device.cache");
  constexpr double kMost = 0x1p50;  // 1 PiB
  if (static_cast<double>(memory) > kMost)
    mistakes.push_back(r.mistake("device.memory", "no device has so much memory", "at most 1024TiB"));
  if (memory > 0 && reserve >= memory)
    mistakes.push_back(r.mistake("device.reserve", "leaves nothing of device.memory", "less than device.memory"));
  if (memory > 0 && cache >= memory)
    mistakes.push_back(r.mistake("device.cache", "as large as device.memory", "less than device.memory"));
}

void check_links(const Reader& r, std::vector<Diagnostic>& mistakes) {
  const bool inside = r.checked().sections.contains("links.inside") || r.checked().doubtful.contains("links.inside");
  const std::string kind = r.text("device.kind");
  if (inside || (kind != "cuda" && kind != "cpu") || r.checked().doubtful.contains("links")) return;
  if (kind == "cpu") {
    mistakes.push_back(r.mistake("links.inside", "missing: ranks on a CPU communicate through its memory",
                                 "a mapping with kind: memory"));
  } else if (r.number("devices_per_node") > 1) {
    mistakes.push_back(
        r.mistake("links.inside",
                  fmt::format("missing: a node has {} devices and nothing joins them", r.number("devices_per_node")),
                  "a mapping with kind, bandwidth, latency_us, achievable"));
  }
}

/// A source that a figure names is in `sources`.
void check_sources(const Reader& r, std::vector<Diagnostic>& mistakes) {
  std::vector<std::string_view> known;
  const std::string prefix = "sources.";
  for (const auto& [path, value] : r.checked().values)
    if (path.starts_with(prefix)) known.push_back(std::string_view(path).substr(prefix.size()));
  for (const std::string& path : r.checked().order) {
    if (!path.ends_with(".source")) continue;
    const CheckedValue& value = *r.checked().find(path);
    if (std::ranges::find(known, value.node.text) != known.end()) continue;
    Diagnostic mistake = value.node.at(path, "no such name in sources");
    mistake.value = value.node.brief();
    mistake.suggestion = nearest(value.node.text, known);
    if (mistake.suggestion.empty())
      mistake.allowed = known.empty() ? "a name that sources has" : fmt::format("one of {}", fmt::join(known, ", "));
    mistakes.push_back(std::move(mistake));
  }
}

// ---- The model ----------------------------------------------------------------------------------------------------

DeviceModel device_of(const Reader& r) {
  DeviceModel device;
  device.kind = r.text("device.kind") == "cuda" ? DeviceKind::cuda : DeviceKind::cpu;
  device.names = r.texts("device.names");
  device.memory_bytes = r.bytes("device.memory");
  device.reserve_bytes = r.bytes("device.reserve");
  device.memory_bandwidth = r.figure("device.memory_bandwidth");
  device.cache_bytes = r.bytes("device.cache");
  device.units = static_cast<int>(r.number("device.units"));
  device.clock_hz = r.number("device.clock");
  device.capability = static_cast<int>(r.number("device.capability"));
  device.launch_us = r.figure("device.launch_us");
  device.variation = r.figure("device.variation");
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const std::string path = "device.peak." + std::string(name_of(dtype));
    if (r.has(path)) device.peak[dtype] = r.figure(path);
  }
  if (r.has("device.peak.fp8")) device.fp8_peak = r.figure("device.peak.fp8");
  const std::string shares = "device.achievable.";
  for (const FieldDef& field : machine_fields()) {
    if (field.name != "device") continue;
    for (const FieldDef& inner : field.forms.front().fields) {
      if (inner.name != "achievable") continue;
      for (const FieldDef& work : inner.forms.front().fields)
        if (r.has(shares + std::string(work.name)))
          device.achievable[std::string(work.name)] = r.figure(shares + std::string(work.name));
    }
  }
  for (std::size_t i = 0; i < r.entries("device.measured"); ++i) {
    const std::string at = fmt::format("device.measured[{}].", i);
    device.measured.push_back({r.text(at + "work"), *dtype_named(r.text(at + "dtype")),
                               static_cast<int>(r.number(at + "threads")), static_cast<int>(r.number(at + "ranks")),
                               r.integers(at + "sizes"), r.figure(at + "rate")});
  }
  return device;
}

LinkModel link_of(const Reader& r, const std::string& at) {
  LinkModel link;
  link.kind = r.text(at + ".kind");
  link.bandwidth = r.figure(at + ".bandwidth");
  link.latency_us = r.figure(at + ".latency_us");
  link.achievable = r.figure(at + ".achievable");
  link.is_switch = r.flag(at + ".switch");
  link.reduces = r.flag(at + ".reduces");
  link.reducing = r.figure(at + ".reducing");
  if (r.has(at + ".oversubscription")) link.oversubscription = r.number(at + ".oversubscription");
  return link;
}

MachineModel machine_of(const Reader& r, const std::string& path) {
  MachineModel machine;
  machine.name = fs::path(path).stem().string();
  machine.description = r.text("description");
  machine.device = device_of(r);
  machine.devices_per_node = static_cast<int>(r.number("devices_per_node"));
  if (r.checked().sections.contains("links.inside")) machine.inside = link_of(r, "links.inside");
  if (r.checked().sections.contains("links.between")) machine.between = link_of(r, "links.between");
  for (std::size_t i = 0; i < r.entries("collectives"); ++i) {
    const std::string at = fmt::format("collectives[{}].", i);
    machine.collectives.push_back({r.text(at + "collective"), r.text(at + "backend"),
                                   static_cast<int>(r.number(at + "ranks")), r.bytes(at + "bytes"),
                                   r.figure(at + "us")});
  }
  machine.overlap_slowdown = r.number("overlap_slowdown");
  machine.price_per_device_hour = r.number("price_per_device_hour");
  machine.host_memory_bytes = r.bytes("host_memory");
  machine.host_link = r.figure("host_link");
  machine.host_bandwidth = r.figure("host_bandwidth");
  if (r.checked().sections.contains("disk")) machine.disk = {r.figure("disk.read"), r.figure("disk.write")};
  machine.measured_here = r.flag("measured_here");
  return machine;
}

MachineModel checked_machine(const yaml::Node& tree, const std::string& path) {
  const Checked checked = check(machine_fields(), tree);
  std::vector<Diagnostic> mistakes = checked.mistakes;
  const Reader reader(checked, tree);
  for (const auto rule : {check_memory, check_links, check_sources}) rule(reader, mistakes);
  if (!mistakes.empty()) {
    sort_mistakes(mistakes);
    throw JobError(std::move(mistakes));
  }
  return machine_of(reader, path);
}

}  // namespace

MachineModel load_machine(const std::string& path, const std::string& folder) {
  return checked_machine(with_base(yaml::read_file(path), path, folder, 0), path);
}

MachineModel parse_machine(std::string text, const std::string& path, const std::string& folder) {
  return checked_machine(with_base(yaml::parse(std::move(text), path), path, folder, 0), path);
}

std::string_view name_of(ShippedCpu cpu) {
  switch (cpu) {
    case ShippedCpu::avx2:
      return "cpu-avx2";
    case ShippedCpu::avx512:
      return "cpu-avx512";
    case ShippedCpu::amx:
      return "cpu-amx";
  }
  return "?";
}

MachineModel builtin_cpu(const CpuFacts& facts) {
  yaml::Node tree = yaml::parse(kShippedAvx512, "cpu-avx512.yaml");  // the base of the others
  if (facts.like == ShippedCpu::avx2) lay_over(tree, yaml::parse(kShippedAvx2, "cpu-avx2.yaml"));
  if (facts.like == ShippedCpu::amx) lay_over(tree, yaml::parse(kShippedAmx, "cpu-amx.yaml"));
  MachineModel machine = checked_machine(tree, "this computer");
  DeviceModel& device = machine.device;
  const double cores = static_cast<double>(facts.cores) / device.units;
  machine.description = fmt::format("{} cores by the figures of {}", facts.cores, name_of(facts.like));
  if (facts.arithmetic != 1)
    machine.description += fmt::format(", with {:.0f}% of its arithmetic", 100 * facts.arithmetic);
  for (auto& [dtype, peak] : device.peak) peak = {peak.value * cores * facts.arithmetic, std::max(peak.spread, 0.3)};
  // One core reaches about 15 GB/s, a socket of eight channels about 200.
  device.memory_bandwidth = {std::min(device.memory_bandwidth.value * cores, 200e9), 0.5};
  device.units = facts.cores;
  device.memory_bytes = facts.memory_bytes;
  device.reserve_bytes = facts.reserve_bytes;
  return machine;
}

std::vector<std::string> machine_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  if (folder.empty()) return names;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  std::ranges::sort(names);
  return names;
}

std::string machine_of_gpu(const std::string& gpu, const std::string& folder) {
  for (const std::string& name : machine_names(folder)) {
    const std::string path = (fs::path(folder) / (name + ".yaml")).string();
    if (std::ranges::count(load_machine(path, folder).device.names, gpu) > 0) return path;
  }
  return "";
}

MachinePath find_machine(const std::string& name, const std::string& beside, const std::string& folder) {
  const auto exists = [](const fs::path& path) {
    std::error_code error;
    return fs::is_regular_file(path, error);
  };
  // A path has a slash or a suffix; a name has neither.
  if (name.find('/') != std::string::npos || name.ends_with(".yaml")) {
    const std::string path = (fs::path(beside) / name).lexically_normal().string();
    return exists(path) ? MachinePath{path, "", ""} : MachinePath{"", "looked for " + path, ""};
  }
  const std::string path = (fs::path(folder) / (name + ".yaml")).string();
  if (!folder.empty() && exists(path)) return {path, "", ""};
  const std::vector<std::string> names = machine_names(folder);
  const Alias* alias = alias_of_value("cluster.hardware", name);
  return {"", names.empty() ? "no hardware files are installed" : fmt::format("there are {}", fmt::join(names, ", ")),
          alias != nullptr ? std::string(alias->ours)
                           : nearest(name, std::vector<std::string_view>(names.begin(), names.end()))};
}

std::string hardware_schema() { return trainer::hardware_schema(machine_fields()); }

}  // namespace trainer::cost
