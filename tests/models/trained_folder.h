// A model folder trained on this processor, and the tensors of its last checkpoint.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "engine/checkpoint/checkpoint.h"
#include "engine/monitor/monitor.h"
#include "engine/train/ranks.h"
#include "engine/train/train.h"
#include "tests/models/folder_jobs.h"

namespace trainer::test {

/// Runs the job to its end. Returns the f32 tensors that it saved.
inline std::map<std::string, reference::Tensor> trained_tensors(const LoadedJob& loaded, const Monitors& monitors) {
  const CompiledJob compiled = compiled_here(loaded, Purpose::train, threads_per_rank(world_size_of(loaded.job)));
  const RunReport report = train(loaded, compiled, monitors, {});
  CHECK(report.planned_peak_bytes == report.allocated_bytes);
  const auto saved = checkpoint::open_checkpoint(report.checkpoint);
  std::map<std::string, reference::Tensor> tensors;
  for (const checkpoint::TensorInfo& info : saved.tensors.tensors())
    if (info.dtype == DType::f32) tensors[info.name] = read_tensor(saved.tensors, info.name);
  return tensors;
}

}  // namespace trainer::test
