// Jobs and machines for tests of searches.
#pragma once

#include <cstdint>
#include <string>

#include "engine/compile/compile.h"
#include "engine/compile/hardware.h"
#include "engine/cost/machine_model.h"
#include "engine/ops/op_def.h"

namespace trainer::tests {

// A device without workspaces.
struct PlainTarget final : Target {
  std::int64_t workspace_bytes(const Signature&) const override { return 0; }
};

// Communication of three kinds beside each other, as on a GPU.
struct StreamsTarget final : Target {
  std::int64_t workspace_bytes(const Signature&) const override { return 0; }
  int communication_streams() const override { return 3; }
};

inline const std::string kConfigs = std::string(TRAINER_SOURCE_DIR) + "/configs";

inline const cost::MachineModel& h100() {
  static const cost::MachineModel machine = cost::load_machine(kConfigs + "/hardware/h100-sxm.yaml");
  return machine;
}

// Its host has no room for anything of the devices.
inline const cost::MachineModel& h100_with_small_host() {
  static const cost::MachineModel machine = [] {
    cost::MachineModel small = h100();
    small.host_memory_bytes = std::int64_t{4} << 30;
    return small;
  }();
  return machine;
}

inline const std::string kBf16 = "precision: {compute: bf16}\n";

inline LoadedJob job_of(const std::string& model, int nodes, const std::string& batch, const std::string& rest,
                        const std::string& precision = kBf16) {
  const std::string text =
      "model: " + model +
      "\ndata: {format: tokens, train: [ids.bin], seq_len: 2048}\ntrain: {steps: 10, batch: " + batch + "}\n" +
      precision + "cluster: {backend: mpi, nodes: " + std::to_string(nodes) + ", devices_per_node: 8}\n" + rest;
  LoadOptions options;
  options.configs_dir = kConfigs;
  return parse_job(text, "job.yaml", {}, options);
}

inline CompiledJob planned(const LoadedJob& loaded, double memory_gib = 76,
                           const cost::MachineModel& machine = h100()) {
  static const PlainTarget target;
  const auto bytes = static_cast<std::int64_t>(memory_gib * (std::int64_t{1} << 30)) * 8;
  return compile(loaded, Hardware{.target = &target, .memory_bytes = bytes, .machine = &machine, .ranks_per_node = 8},
                 Purpose::train);
}

// The same of sequences of another length.
inline LoadedJob of_length(std::int64_t seq_len, LoadedJob loaded) {
  loaded.job.data.seq_len = seq_len;
  return loaded;
}

inline const std::string kSmall =
    "{graph: models/gpt2.yaml, with: {layers: 4, heads: 8, dim: 512, vocab: 8192, context: 2048}}";
inline const std::string kLlama8B =
    "{graph: models/llama.yaml, with: {layers: 32, heads: 32, kv_heads: 8, dim: 4096, hidden: 14336, vocab: 128256}}";

}  // namespace trainer::tests
