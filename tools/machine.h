// This machine, as planning and `doctor` see it.
#pragma once

#include <cstdint>
#include <string>

#include "engine/compile/compile.h"
#include "kernels/cpu/table.h"

namespace trainer::tools {

/// The folder of installed configs: next to the executable's folder, or above it, or in ../share/trainer; empty where
/// there is none.
std::string configs_dir();

/// Where `calibrate` writes what it measured of this machine, and where jobs on it find that: trainer/hardware.yaml in $XDG_CONFIG_HOME, or in
/// ~/.config.
std::string default_hardware_file();

/// Memory of this machine: what it has, or what the control groups around this process allow, if that is less.
std::int64_t memory_bytes();
/// The part of it that is not planned with: for the process itself, mapped data and the rest of the system.
std::int64_t reserved_bytes();

/// What a job of `ranks` ranks a machine is compiled for here; each has `threads` threads (0: its share).
class Machine {
 public:
  explicit Machine(int ranks, int threads = 0);
  /// Points into this object.
  Hardware hardware() const { return {&target_, memory_bytes() - reserved_bytes(), context_.threads}; }
  const kernels::cpu::Context& context() const { return context_; }

 private:
  kernels::cpu::Context context_;
  kernels::cpu::CpuTarget target_;
};

}  // namespace trainer::tools
