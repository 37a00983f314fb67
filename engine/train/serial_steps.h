// A serial simulation of steps in which data ranks send codes in place of weights or gradients, for `trainer verify`.
// The gradient of each share of the batch comes from one rank that trains the share by itself; everything that a
// strategy adds is done on the host, in f64: codes, residuals, sums, clipping and the update, by the formulas of
// kernels/compression.h (serial_codes.h) and kernels/optimizer.h. Of the engine it uses the training of one rank and
// checkpoints, and of the ranks' plan only how units lie in memory (local_units.h), since that says which elements
// share a scale. Tensor and pipeline axes cut units, and codes with them.
//
// How one rank tells its gradient: Adam with β₁ = 0 has it as its first moment, exactly.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/compile/compile.h"
#include "engine/train/local_units.h"
#include "engine/train/rewritten.h"
#include "engine/train/serial_codes.h"

namespace trainer {

class SerialSteps {
 public:
  /// Trains share `share` in `folder` until step `until`, from where the folder's checkpoint is, or from the initial
  /// weights.
  using TrainShare = std::function<void(int share, const std::string& folder, std::int64_t until)>;

  /// `ranks` is the plan that is simulated. Both outlive it. Folders are made inside `folder`.
  /// REQUIRES: no mistakes_of.
  SerialSteps(const Job& job, const CompiledJob& ranks, std::string folder, TrainShare train);

  /// Whether ranks of such a job send codes.
  static bool sends_codes(const Job& job);
  /// What of it is not simulated, by key: context and expert axes and weights that several stages share, under
  /// compressed outer gradients too; optimizers other than adam, adamw, lion and sgd in f32.
  static std::vector<Diagnostic> mistakes_of(const LoadedJob& loaded, const CompiledJob& ranks);

  /// Parts of a global batch whose gradients are sent by themselves: of data ranks, or of their micro-batches.
  int num_shares() const { return num_shares_; }
  /// The job of a share of the one-rank job `one`.
  LoadedJob share_of(LoadedJob one) const;

  /// From `initial`, a checkpoint of the one-rank job as it starts, `steps` steps. Returns the checkpoint that the
  /// one-rank job would have, as of `initial`'s step.
  checkpoint::Checkpoint run(const checkpoint::Checkpoint& initial, std::int64_t steps);
  /// Of the summed gradients, step by step, before clipping.
  const std::vector<double>& norms() const { return norms_; }

 private:
  using Values = std::vector<double>;
  struct UnitValues {
    LocalUnit local;
    const OptimizerJob* optimizer;
    Values master, states[2];
    CompressedSums sums;  // of gradients
  };

  void begin(const checkpoint::Checkpoint& initial);
  Values sent_weights(const UnitValues& of) const;
  TensorValues next_of_shares() const;
  Values gradient_of(const LocalUnit& local, const checkpoint::Checkpoint& share) const;
  Values reduced(UnitValues& of, const std::vector<Values>& gradients) const;
  void update(UnitValues& of, const Values& gradient, double factor, std::int64_t step) const;
  checkpoint::Checkpoint end(const checkpoint::Checkpoint& initial) const;
  std::string folder_of(int share) const { return folder_ + "/share-" + std::to_string(share); }

  const Job& job_;
  const CompiledJob& ranks_;
  const std::string folder_;
  const TrainShare train_;
  const int num_ranks_, num_shares_;
  std::vector<UnitValues> units_;  // the trained ones
  std::vector<double> norms_;
};

}  // namespace trainer
