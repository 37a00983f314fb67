// The runs that `compare` compares (compare.h): a job as it is, and the serial simulations of what by design is not the
// training of one rank. Each in a folder of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/train/compare.h"
#include "engine/train/serial_steps.h"

namespace trainer {

/// What a run told, step by step.
struct Told {
  std::vector<double> losses, norms;
  std::vector<std::int64_t> dropped;  // choices that experts left out; 0 where nothing counts them
  bool counts_dropped = false;
  std::vector<std::string> different_replicas;  // by name, at the end (replicas.h)
};

/// A run, and the checkpoint at its end.
struct Ended : Told {
  CompiledJob compiled;
  checkpoint::Checkpoint checkpoint;
  std::vector<SerialSteps::Apart> apart{};  // of ranks that send codes
};

Ended run_job(const LoadedJob& loaded, const std::string& folder, std::int64_t steps, const Compiler& compile);

/// What ranks that train apart do, one after the other (serial_rounds.h). The loss is that of all, the norm the
/// first's. `apart`: the plan of `ranks`.
Ended run_apart(const LoadedJob& ranks, const LoadedJob& one, const CompiledJob& apart, const std::string& folder,
                std::int64_t steps, const Compiler& compile);

/// What ranks that send codes do (serial_steps.h). `coded`: the plan of `ranks`.
Ended run_coded(const LoadedJob& ranks, const LoadedJob& one, const CompiledJob& coded, const std::string& folder,
                std::int64_t steps, const Compiler& compile);

}  // namespace trainer
