// Inputs: the data of a job, joined to the fields of a plan by name and checked against them.
#pragma once

#include <memory>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/data/data.h"
#include "engine/data/loader.h"
#include "engine/run/executor.h"

namespace trainer {

/// Opens the job's data as the compiled graph wants it. Raises DataError where the two do not fit.
data::Data open_inputs(const LoadedJob& loaded, const CompiledJob& compiled);

/// Binds each batch of a loader to an executor's fields.
class BatchBinder {
 public:
  /// Checks that the dataset has every field of the batch that `program` copies in, in the right size for `samples` samples.
  BatchBinder(Executor& executor, const data::Dataset& dataset, std::int32_t program, std::int64_t samples);
  void bind(const data::Loader::Batch& batch);

 private:
  Executor& executor_;
  std::vector<std::int32_t> fields_;  // of the plan, for each of the dataset's; -1: not read
};

}  // namespace trainer
