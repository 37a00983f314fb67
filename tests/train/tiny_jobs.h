// Tiny jobs, written with their data into a temporary folder, and runs of them: what the tests of training share. A job
// has a few thousand parameters and trains in milliseconds; tests change it by overrides, as a command line does.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/train/train.h"
#include "tests/temporary.h"

namespace trainer::tests {

using Overrides = std::vector<std::string>;
/// Those of `a`, then those of `b`.
Overrides both(Overrides a, const Overrides& b);

/// Unit roundoffs: the largest relative error of one rounding.
inline constexpr double kRoundoffF32 = 0x1p-24;
inline constexpr double kRoundoffBf16 = 0x1p-9;

/// Folder of the repository's configs.
std::string configs_dir();

/// A folder with gpt2.yaml, llama.yaml (tokens of 32 ids, 8 a sample) and mlp.yaml (a table of 6 features and 4
/// classes) and their data. All train 8 samples a step for 6 steps by AdamW and save nothing but the last step, in
/// `run`.
class TinyJobs {
 public:
  TinyJobs();
  std::string path(std::string_view name = "") const { return folder_.path(name); }
  std::string write(std::string_view name, std::string_view contents) const { return folder_.write(name, contents); }
  /// The job `name`.yaml with overrides; its checkpoints go to the folder `run`.
  LoadedJob load(const std::string& name, const std::string& run, Overrides overrides = {}) const;

 private:
  TemporaryFolder folder_;
};

/// What a run told its monitors, and its report.
struct Trained {
  RunReport report;
  std::vector<double> loss, grad_norm;  ///< of each step of this run
  std::vector<double> loss_scale;       ///< likewise, where the job has one
  std::vector<double> aux_loss;         ///< likewise
  std::vector<std::int64_t> dropped;    ///< likewise
  std::vector<Figures> figures;         ///< likewise
  std::vector<std::int64_t> skipped;    ///< the steps that made no update
  std::vector<EvaluationRecord> evaluations;
  std::vector<std::string> messages;
  std::optional<StartRecord> start;  ///< nothing: the run did not begin
};

/// The job, whose folder of checkpoints is removed where checkpoint.resume is none: it can be run again.
const LoadedJob& from_the_start(const LoadedJob& loaded);

CompiledJob compiled(const LoadedJob& loaded, Purpose purpose = Purpose::train);
/// `after_step` is called on rank 0 after each step, with its number.
Trained run(const LoadedJob& loaded, const CompiledJob& compiled,
            const std::function<void(std::int64_t)>& after_step = {}, TrainOptions options = {});
Trained run(const LoadedJob& loaded, const std::function<void(std::int64_t)>& after_step = {},
            TrainOptions options = {});

/// Folder of the checkpoint of a step in a folder of checkpoints.
std::string step_name(std::int64_t step);
/// Puts a copy of one checkpoint of the folder `from` into the folder `to`.
void copy_step(const TinyJobs& jobs, const std::string& from, std::int64_t step, const std::string& to);

/// The f32 tensors of a checkpoint by name: weights, and states as "name.exp_avg".
using Tensors = std::map<std::string, std::vector<float>>;
Tensors tensors_of(const std::string& checkpoint);
/// The weights alone.
Tensors weights_of(const std::string& checkpoint);
/// Largest |a − b| over all elements of all tensors; infinite where names or sizes differ or an element is NaN.
double largest_difference(const Tensors& a, const Tensors& b);

/// Contents of every file of a checkpoint by name; of the manifest without what names the run and its job.
std::map<std::string, std::string> files_of(const std::string& checkpoint);
/// Names in a folder, sorted.
std::vector<std::string> names_in(const std::string& folder);

/// Sets an environment variable for as long as it lives.
class EnvironmentSetting {
 public:
  EnvironmentSetting(const char* name, const std::string& value);
  ~EnvironmentSetting();
  EnvironmentSetting(const EnvironmentSetting&) = delete;
  EnvironmentSetting& operator=(const EnvironmentSetting&) = delete;

 private:
  const char* name_;
  std::string before_;
  bool was_set_;
};

/// Writes the table `name`: so many batches of 8 rows for the job `mlp`, in order, without those of `left_out`. Those
/// of `poisoned` overflow in the first layer.
Overrides table_of(const TinyJobs& jobs, const std::string& name, int batches, const std::vector<int>& poisoned,
                   const std::vector<int>& left_out = {});

}  // namespace trainer::tests
