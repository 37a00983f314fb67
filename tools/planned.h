// A job of the command line, planned and predicted for the machine that its cluster names.
#pragma once

#include <optional>

#include "engine/report/planned.h"
#include "tools/command.h"

namespace trainer::tools {

/// Throws JobError; a plan that does not fit is no error.
report::Planned planned(LoadedJob loaded);

/// Says on stderr why a plan does not fit; returns the exit code.
int tell_fit(const report::Planned& one);

/// `compiled` is of Purpose::train and of the machine that cluster.hardware names, or of this computer; then by what
/// was measured here. `threads`: of a rank on a CPU; 0: its share of a node's cores.
report::PredictedStep predict_here(const LoadedJob& loaded, const CompiledJob& compiled, int threads = 0);

/// PredictedStep::peak_flops alone.
double peak_flops_here(const LoadedJob& loaded, const CompiledJob& compiled, int threads);

/// Nothing where the job is not of bf16, or runs on a GPU or on a processor that has bf16 instructions. Plans the job a
/// second time. REQUIRES: what predict_here requires.
std::optional<report::WithoutBf16> without_bf16(const LoadedJob& loaded, const CompiledJob& compiled, int threads = 0);

}  // namespace trainer::tools
