// How a cluster is resolved: from a hardware file, or from this computer's GPUs or CPU. Each key of the job is then
// checked against it.
#include "engine/compile/hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "engine/core/check.h"
#include "engine/cost/predict.h"

namespace trainer {
namespace {

using cost::MachineModel;

class Settling {
 public:
  Settling(LoadedJob& loaded, const std::string& folder, const FindGpus& find_gpus)
      : loaded_(loaded), cluster_(loaded.job.cluster), folder_(folder), find_gpus_(find_gpus) {}

  std::optional<MachineModel> run() {
    std::optional<MachineModel> machine;
    if (!cluster_.hardware) here();
    if (cluster_.hardware) {
      machine = described();
      devices(*machine);
      links(*machine);
      if (cluster_.price_per_device_hour) machine->price_per_device_hour = *cluster_.price_per_device_hour;
    }
    dtype(machine);
    fp8(machine);
    offload(machine && machine->device.kind == cost::DeviceKind::cuda);
    price(machine ? machine->price_per_device_hour : cluster_.price_per_device_hour.value_or(0));
    if (!mistakes_.empty()) throw JobError(std::move(mistakes_));
    const bool cuda = machine && machine->device.kind == cost::DeviceKind::cuda;
    cluster_.device = cuda ? Device::cuda : Device::cpu;
    if (cuda && !cluster_.devices_per_node) cluster_.devices_per_node = machine->devices_per_node;
    return machine;
  }

 private:
  MachineModel described() {
    const cost::MachinePath found = cost::find_machine(*cluster_.hardware, "", folder_);
    if (found.path.empty()) {
      Diagnostic mistake = loaded_.at("cluster.hardware", "no such hardware; " + found.tried);
      mistake.suggestion = found.suggestion;
      throw JobError({std::move(mistake)});
    }
    cluster_.hardware = found.path;
    return cost::load_machine(found.path, folder_);
  }

  // This computer: its GPUs, or, with nothing set, its CPU.
  void here() {
    const bool wanted =
        cluster_.device == Device::cuda || (cluster_.backend == Backend::nccl && cluster_.device != Device::cpu);
    const bool taken = wanted || (cluster_.device == Device::automatic && cluster_.backend == Backend::automatic);
    const GpusHere gpus = taken && find_gpus_ ? find_gpus_() : GpusHere{};
    if (gpus.count > 0) return of_gpus(gpus);
    const std::string why = gpus.none.empty() ? "" : " (" + gpus.none + ")";
    if (cluster_.device == Device::cuda)
      add("cluster.device",
          "there is no GPU here to ask for its figures" + why + ": cluster.hardware must name the machine",
          "cluster.hardware: " + files());
    else if (cluster_.backend == Backend::nccl)
      add("cluster.backend", "nccl is between GPUs, and cluster.hardware names none" + why,
          "auto, threads or mpi; or cluster.hardware: " + files());
  }

  void of_gpus(const GpusHere& gpus) {
    const std::string path = cost::machine_of_gpu(gpus.name, folder_);
    if (path.empty()) {
      add("cluster.hardware",
          fmt::format("this computer has {} \"{}\", and no hardware file is for it", gpus.count, gpus.name),
          fmt::format("{}: with base: and the name of the nearest, device: {{names: [\"{}\"]}} and what differs; or "
                      "cluster.device=cpu",
                      files(), gpus.name));
      throw JobError(std::move(mistakes_));
    }
    cluster_.hardware = path;
    if (!cluster_.devices_per_node) cluster_.devices_per_node = gpus.count;
  }

  std::string files() const {
    const std::vector<std::string> names = cost::machine_names(folder_);
    return names.empty() ? "a hardware file of your own"
                         : fmt::format("{}, or a hardware file of your own", fmt::join(names, ", "));
  }

  void devices(const MachineModel& machine) {
    const bool cuda = machine.device.kind == cost::DeviceKind::cuda;
    if (cuda && cluster_.device == Device::cpu)
      add("cluster.device", "the devices of " + machine.name + " are GPUs", "auto or cuda");
    if (!cuda && cluster_.device == Device::cuda) add("cluster.device", machine.name + " has no GPUs", "auto or cpu");
    if (cuda && cluster_.backend == Backend::threads)
      add("cluster.backend", "ranks on GPUs are processes: the devices of " + machine.name + " are GPUs",
          "auto, mpi or nccl");
    if (!cuda && cluster_.backend == Backend::nccl)
      add("cluster.backend", "nccl is between GPUs, and " + machine.name + " has none", "auto, threads or mpi");
    if (cuda && cluster_.devices_per_node.value_or(1) > machine.devices_per_node)
      add("cluster.devices_per_node",
          fmt::format("a node of {} has {} devices", machine.name, machine.devices_per_node),
          fmt::format("auto or 1 to {}", machine.devices_per_node));
  }

  void links(const MachineModel& machine) {
    if (cluster_.nodes > 1 && !machine.between)
      add("cluster.nodes", fmt::format("nothing joins the nodes of {}: its file has no links.between", machine.name),
          "1, or a hardware file with links.between");
  }

  void dtype(const std::optional<MachineModel>& machine) {
    const DType compute = loaded_.job.precision.compute;
    if (compute == DType::f16 && !(machine && machine->device.kind == cost::DeviceKind::cuda))
      return add("precision.compute",
                 "no kernel of a processor computes in f16, which has no arithmetic of its own there",
                 "f32, bf16; or a GPU: cluster.hardware");
    if (!machine || machine->device.peak.contains(compute)) return;
    std::string has;
    for (const auto& [dtype, peak] : machine->device.peak)
      has += (has.empty() ? "" : ", ") + std::string(name_of(dtype));
    add("precision.compute", fmt::format("{} has no peak in {}", machine->name, name_of(compute)), has);
  }

  // Refused where the device has no such products, never replaced by others.
  void fp8(const std::optional<MachineModel>& machine) {
    if (loaded_.job.precision.matmul != MatmulPrecision::fp8) return;
    const std::string name = machine ? machine->name : "this computer's CPU";
    const bool cuda = machine && machine->device.kind == cost::DeviceKind::cuda;
    const std::string allowed = "none; or a GPU of compute capability 8.9, 9.0, 10.0 or 10.3: cluster.hardware";
    if (!cuda)
      add("precision.matmul", "no kernel of a processor multiplies in fp8 (" + name + ")", allowed);
    else if (fp8_scales_of(machine->device.capability) == Fp8Scales::none)
      add("precision.matmul",
          fmt::format("no products of fp8 on {}, whose compute capability is {}.{}", name,
                      machine->device.capability / 10, machine->device.capability % 10),
          allowed);
    else if (!machine->device.fp8_peak)
      add("precision.matmul", name + " has no peak in fp8", "none; or a hardware file with device.peak.fp8");
  }

  void offload(bool cuda) {
    const OffloadJob& offload = loaded_.job.strategy.offload;
    for (const auto& [key, where] : offload.parts()) {
      const std::string path = fmt::format("strategy.offload.{}", key);
      if (where == OffloadTo::host && !cuda) add(path, "on a CPU the device is the host", "none or disk");
      if (where == OffloadTo::disk && cuda)
        add(path, "files are read into the memory of a CPU; beside a GPU its host has memory", "none or host");
    }
  }

  void price(double price) {
    if (loaded_.job.goal != Goal::cost || price > 0) return;
    add("goal", "the cost of a device is not known",
        "time or memory; or cluster.price_per_device_hour, in the job or as price_per_device_hour in the hardware "
        "file");
  }

  void add(std::string_view path, std::string message, std::string allowed) {
    mistakes_.push_back(loaded_.at(path, std::move(message), std::move(allowed)));
  }

  LoadedJob& loaded_;
  ClusterJob& cluster_;
  const std::string& folder_;
  const FindGpus& find_gpus_;
  std::vector<Diagnostic> mistakes_;
};

}  // namespace

std::optional<MachineModel> resolve_cluster(LoadedJob& loaded, const std::string& folder, const FindGpus& find_gpus) {
  return Settling(loaded, folder, find_gpus).run();
}

std::int64_t memory_limit(const Job& job, const Hardware& hardware, std::int64_t ranks_per_node) {
  const std::int64_t bytes = hardware.device_bytes > 0
                                 ? hardware.device_bytes
                                 : hardware.memory_bytes / std::max<std::int64_t>(1, ranks_per_node);
  return std::min(bytes, job.cluster.memory_limit.value_or(bytes));
}

cost::Cluster cluster_of(const Mesh& mesh, const Hardware& hardware) {
  CHECK(hardware.machine != nullptr, "times are asked of a machine that nothing describes");
  return {hardware.machine, mesh, hardware.ranks_per_node, hardware.threads, 0};
}

cost::Cluster cluster_of(const CompiledJob& compiled, const Hardware& hardware) {
  cost::Cluster cluster = cluster_of(compiled.plan.mesh, hardware);
  for (const Role& role : compiled.plan.roles)
    cluster.working_bytes = std::max(cluster.working_bytes, role.total_bytes * hardware.ranks_per_node);
  return cluster;
}

const cost::Prediction& predict_step(CompiledJob& compiled, const Hardware& hardware) {
  if (compiled.prediction == nullptr)
    compiled.prediction = std::make_shared<const cost::Prediction>(
        cost::predict(compiled.plan, cost::CostModel(cluster_of(compiled, hardware))));
  return *compiled.prediction;
}

}  // namespace trainer
