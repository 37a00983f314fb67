// Inputs: the data of a job, joined to the fields of a plan by name and checked against them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/data/data.h"
#include "engine/data/loader.h"
#include "engine/run/executor.h"

namespace trainer {

/// A mistake in the files that `key` names. The message says which file; the key's value, a list or a pattern perhaps,
/// is left out.
Diagnostic about_files(const LoadedJob& loaded, std::string_view key, std::string message);

/// What the compiled graph says of the fields that the data feeds.
data::GraphInputs graph_inputs(const Job& job, const CompiledJob& compiled);

/// Opens the job's data as the compiled graph wants it. Raises DataError where the two do not fit, IoError where the
/// system refuses a file; both say where the job names the data. `trainer validate --files` says the same
/// (check_files.h).
data::Data open_inputs(const LoadedJob& loaded, const CompiledJob& compiled);

/// Parts of the data that are too small for one batch.
std::vector<Diagnostic> too_few_samples(const LoadedJob& loaded, const CompiledJob& compiled, const data::Data& data);

/// Binds each batch of a loader to an executor's fields.
class BatchBinder {
 public:
  /// Checks that the dataset has every field of the batch that `program` copies in, in the right size for `samples`
  /// samples.
  BatchBinder(Executor& executor, const data::Dataset& dataset, std::int32_t program, std::int64_t samples);
  void bind(const data::Loader::Batch& batch);

 private:
  Executor& executor_;
  std::vector<std::int32_t> fields_;  // of the plan, for each of the dataset's; -1: not read
};

}  // namespace trainer
