// Inputs: the data of a job, joined to the fields of a plan by name and checked against them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/data/data.h"
#include "engine/data/loader.h"
#include "engine/data/questions.h"
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

/// The questions of eval.generate; null where the plan answers none. Raises as open_inputs does.
std::shared_ptr<const data::Questions> open_questions(const LoadedJob& loaded, const CompiledJob& compiled);

/// Opens the job's data, of whatever model: without its vocabulary, and without a plan. Raises as open_inputs does.
data::Data open_samples(const LoadedJob& loaded, data::Tokenizing tokenizing);

/// Puts the ids of the job's text into the cache (data/data.h). Ranks do this before they meet, so that none waits in a
/// collective while another one does: then open_inputs finds them. Where there is no cache it does nothing. `compiled`,
/// if it is known by then, says how many ids the model has. Raises as open_inputs does. `tokenizing.cache` is set here.
void tokenize_inputs(const LoadedJob& loaded, const CompiledJob* compiled, data::Tokenizing tokenizing);

/// The folder of the cache for this data; empty: it needs none, or there is none. The default folder is done without
/// where it cannot be written, as `say` hears.
std::string cache_for(const DataJob& job, const std::function<void(const std::string&)>& say = {});

/// Parts of the data that are too small for one batch.
std::vector<Diagnostic> too_few_samples(const LoadedJob& loaded, const CompiledJob& compiled, const data::Data& data);

/// Binds each batch of a loader to an executor's fields; of sequences that are cut over ranks, the rank's part.
class BatchBinder {
 public:
  /// Checks that the dataset has every field of the batch that `program` copies in, in the right size for `samples`
  /// samples.
  BatchBinder(Executor& executor, const MeshPoint& point, const data::Dataset& dataset, std::int32_t program,
              std::int64_t samples);
  BatchBinder(const BatchBinder&) = delete;
  BatchBinder& operator=(const BatchBinder&) = delete;
  void bind(const data::Loader::Batch& batch);
  /// One of the dataset's fields, of all samples.
  void bind(std::size_t field, const std::byte* values);

 private:
  Executor& executor_;
  // What the rank reads of each of the dataset's fields: of each sample `stride` bytes long, `bytes` from `first` on;
  // zigzag, half of them, and half that end as far from the sample's end.
  struct Part {
    std::int32_t index = -1;  // of the plan's fields; -1: not read
    std::int64_t stride = 0, first = 0, bytes = 0;
    bool zigzag = false;
    std::vector<std::byte> values{};  // where that is not all of it: a copy
  };
  std::vector<Part> fields_;
  const std::int64_t samples_;
};

}  // namespace trainer
