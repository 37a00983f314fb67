// MachineModel: a machine as a hardware file (configs/hardware/*.yaml, or a person's own) describes it: what one device
// can hold and do, what links join devices inside a node and nodes with each other, and what was measured. Every time
// and every memory limit that is predicted comes from these figures and from the plan, and from nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/dtype.h"

namespace trainer::cost {

/// A number of a hardware file. `spread` is the half width of its interval as a share of the value (0.05: ±5%).
struct Figure {
  double value = 0;
  double spread = 0;
};

enum class DeviceKind : std::uint8_t { cpu, cuda };

/// Whose kernels make the gradient of attention on a GPU: ours, or FlashAttention-2's, in comparisons with what others
/// published.
enum class AttentionKernels : std::uint8_t { own, flash_attention_2 };

/// One measured time of one kernel on one rank, of `threads` threads on a CPU (0: a GPU). `sizes` are what op_times.h
/// says of the class of work; rate is FLOP/s for products and attention, bytes/s for all else.
struct MeasuredWork {
  std::string work;  ///< class of work: "matmul", "attention_forward", "adamw" …
  DType dtype = DType::f32;
  int threads = 0;
  int ranks = 1;  ///< that ran the same at the same time on this machine
  std::vector<std::int64_t> sizes;
  Figure rate;
};

/// One measured time of one collective.
struct MeasuredCollective {
  std::string collective;  ///< "all_reduce" …, or "send"
  std::string backend;     ///< "threads", "mpi", "nccl"
  int ranks = 2;
  std::int64_t bytes = 0;  ///< of the larger side
  Figure us;
};

struct DeviceModel {
  DeviceKind kind = DeviceKind::cpu;
  std::vector<std::string> names;  ///< of a GPU: what CUDA calls it
  std::int64_t memory_bytes = 0;   ///< of a GPU its own; of a CPU the node's
  std::int64_t reserve_bytes = 0;  ///< of that, not for plans: context, communicators, the system
  Figure memory_bandwidth;         ///< bytes/s, of the data sheet; of a CPU as measured
  std::int64_t cache_bytes = 0;    ///< last level
  int units = 1;                   ///< streaming multiprocessors, or cores
  double clock_hz = 0;             ///< boost clock of a GPU; 0: unknown
  int capability = 0;              ///< of a GPU: 80, 89, 90, 100
  Figure launch_us;                ///< from the end of a kernel to the start of the next on one stream
  Figure variation;  ///< standard deviation of such devices' speed under full load, as a share; 0: unknown
  std::map<DType, Figure>
      peak;  ///< FLOP/s of dense products by the dtype of their operands; what is missing cannot be used
  std::optional<Figure> fp8_peak;  ///< FLOP/s of dense products of fp8, summed in f32; none: no such products
  /// Shares of the limits that well-made kernels reach at their best size under sustained load, by class of work:
  /// "matmul" of the peak; "attention_forward", "attention_backward" of the peak with heads of 128, long and without a
  /// mask, the gradient counted as 2.5 times the FLOPs; "cudnn_attention_forward", "cudnn_attention_backward" of
  /// cuDNN's kernels; "memory" of the memory bandwidth.
  std::map<std::string, Figure> achievable;
  double achievable_or(const std::string& work, double otherwise) const {
    const auto share = achievable.find(work);
    return share == achievable.end() ? otherwise : share->second.value;
  }
  std::vector<MeasuredWork> measured;
  AttentionKernels attention = AttentionKernels::own;
};

/// Joins devices of a node, or nodes. Bandwidth is bytes/s of one device in one direction.
struct LinkModel {
  std::string kind;  ///< "nvlink", "pcie", "memory" (ranks as threads), "infiniband", "ethernet"
  Figure bandwidth;
  Figure latency_us;      ///< of one hop
  Figure achievable;      ///< share of the bandwidth that large collectives reach
  bool is_switch = true;  ///< every device reaches every other at full bandwidth
  bool reduces = false;   ///< the switch sums (NVLink SHARP, in-network reduction)
  Figure reducing;  ///< if it does: share of the bandwidth at which the bytes of a large all-reduce pass; 0: unknown
  double oversubscription = 1;  ///< between nodes: uplinks are this many times fewer than downlinks
};

/// What ranks of a node keep files on, which share it. bytes/s of large parts, one after the other.
struct DiskModel {
  Figure read, write;
};

struct MachineModel {
  std::string name;         ///< "h100-sxm", the file's name without its suffix
  std::string description;  ///< for people
  DeviceModel device;
  int devices_per_node = 1;
  LinkModel inside;                  ///< between devices of a node
  std::optional<LinkModel> between;  ///< between nodes; none: a single node
  std::vector<MeasuredCollective> collectives;
  double overlap_slowdown = 1;  ///< by how much kernels take longer while a collective inside a node runs beside them
  double price_per_device_hour = 0;  ///< in any currency; 0: unknown
  std::int64_t host_memory_bytes = 0;
  Figure host_link{};             ///< bytes/s between a GPU and its host's memory, in one direction; 0: unknown
  Figure host_bandwidth{};        ///< bytes/s that kernels of a node's processor reach, which ranks share; 0: unknown
  std::optional<DiskModel> disk;  ///< none: unknown
  bool measured_here = false;     ///< written by `trainer calibrate`

  std::int64_t usable_bytes() const { return device.memory_bytes - device.reserve_bytes; }
};

/// Reads a hardware file. Throws JobError with every mistake of it, located: a missing link, a bandwidth of zero, a
/// dtype that is none, figures that cannot be. IoError if it cannot be read. `folder` is where a `base` that is a name
/// is looked for.
MachineModel load_machine(const std::string& path, const std::string& folder = "");

/// The same from a text; `path` names it and gives the folder of relative paths.
MachineModel parse_machine(std::string text, const std::string& path, const std::string& folder = "");

/// The shipped CPUs: cpu-avx2.yaml, cpu-avx512.yaml, cpu-amx.yaml.
enum class ShippedCpu : std::uint8_t { avx2, avx512, amx };
std::string_view name_of(ShippedCpu cpu);

/// What of a CPU is known without measuring it.
struct CpuFacts {
  int cores = 1;
  std::int64_t memory_bytes = 0, reserve_bytes = 0;
  ShippedCpu like = ShippedCpu::avx512;  ///< whose figures it has
  double arithmetic = 1;                 ///< of a core, as a share of that one's
};
/// A shipped CPU's figures for so many cores: a guess where `trainer calibrate` has not been.
MachineModel builtin_cpu(const CpuFacts& facts);

/// The names of the hardware files in a folder, sorted.
std::vector<std::string> machine_names(const std::string& folder);

/// The file in `folder` whose device.names has `gpu`, as CUDA calls it; empty: none has.
std::string machine_of_gpu(const std::string& gpu, const std::string& folder);

/// Where a machine's file is.
struct MachinePath {
  std::string path;        ///< empty: there is none
  std::string tried;       ///< then, for people: which there are, or where it was looked for
  std::string suggestion;  ///< and the nearest name
};
/// `name` is a name in `folder`, or a path (with a slash or a suffix) relative to the folder `beside`.
MachinePath find_machine(const std::string& name, const std::string& beside, const std::string& folder);

/// The JSON Schema (draft-07) of hardware files, pretty-printed: schemas/hardware.schema.json.
std::string hardware_schema();

}  // namespace trainer::cost
