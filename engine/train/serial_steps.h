// A serial simulation of steps in which ranks send codes in place of weights or gradients, for `trainer verify`. The
// gradient that each rank has before it is summed comes from the same ranks without codes (rank_gradients.h), and what
// these make together is held to the gradient of one rank. Everything that a strategy adds is done on the host, in f64:
// codes, residuals, sums, clipping and the update, by the formulas of kernels/compression.h (serial_codes.h) and of
// optimizers (serial_updates.h). Of the ranks' plan it uses how units lie in memory (local_units.h), since that says
// which elements share a scale. Tensor, expert and pipeline axes cut units, and codes with them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/compile/compile.h"
#include "engine/train/local_units.h"
#include "engine/train/rank_gradients.h"
#include "engine/train/rewritten.h"
#include "engine/train/serial_codes.h"
#include "engine/train/serial_updates.h"

namespace trainer {

class SerialSteps {
 public:
  /// What trains for it, in `folder` until step `until`, from where the folder's checkpoint is, or from the initial
  /// weights. Both jobs are with_gradients_as_moments (rank_gradients.h).
  struct Training {
    /// The ranks without codes, on part `part` of the batch of each (num_parts). Returns what they have at the end.
    std::function<RankGradients(int part, const std::string& folder, std::int64_t until)> ranks;
    /// One rank, on the whole batch.
    std::function<void(const std::string& folder, std::int64_t until)> one;
  };

  /// `ranks` is the plan that is simulated. Both outlive it. Folders are made inside `folder`.
  SerialSteps(const Job& job, const CompiledJob& ranks, std::string folder, Training training);

  /// Whether ranks of such a job send codes.
  static bool sends_codes(const Job& job);
  /// Whether weights are among them, frozen ones too.
  static bool sends_weights(const Job& job);
  /// Whether the gradient of each micro-batch is sent by itself.
  static bool sends_micro_batches(const Job& job);
  /// Parts of a rank's batch whose gradients are sent by themselves: all of it, or its micro-batches, or their pairs
  /// (strategy.tensor.overlap).
  static int num_parts(const Job& job, const CompiledJob& ranks);

  /// From `initial`, a checkpoint of the one-rank job as it starts with states in f32, `steps` steps. Returns the
  /// checkpoint that the one-rank job would have, as of `initial`'s step.
  checkpoint::Checkpoint run(const checkpoint::Checkpoint& initial, std::int64_t steps);
  /// Of the summed gradients, step by step, before clipping.
  const std::vector<double>& norms() const { return norms_; }
  /// How far the sum of what all ranks have is from the gradient of one rank, by the latter's norm.
  struct Apart {
    double sums = 0, norms = 0;  ///< norm of the difference; difference of the norms
  };
  /// Step by step.
  const std::vector<Apart>& apart() const { return apart_; }

 private:
  using Values = std::vector<double>;
  struct UnitValues {
    LocalUnit local;
    const OptimizerJob* optimizer;
    SerialWeights weights;
    std::vector<CompressedSums> sums;  // of gradients, stage by stage
  };

  struct Sums {
    Values exact, sent;  // of gradients, before any code and as they are sent
  };

  void begin(const checkpoint::Checkpoint& initial);
  Values sent(const Unit& unit, const Values& weights) const;
  void put_states(TensorValues& into) const;
  TensorValues start_of_step() const;
  void train_to(std::int64_t step);
  Values gradient_of(const LocalUnit& local, int part, int rank) const;
  Sums sums_of(UnitValues& of) const;
  std::vector<Values> summed_and_compared();
  void update(std::vector<Values>& gradients, std::int64_t step);
  checkpoint::Checkpoint end(const checkpoint::Checkpoint& initial) const;
  std::string folder_of(int part) const { return folder_ + "/part-" + std::to_string(part); }
  std::string folder_of_one() const { return folder_ + "/one"; }

  const Job& job_;
  const CompiledJob& ranks_;
  const std::string folder_;
  const Training training_;
  const int num_parts_;
  TensorValues frozen_;                   // weights as they are sent, where those are codes
  std::vector<UnitValues> units_;         // the trained ones
  std::vector<RankGradients> gradients_;  // of the last step, part by part
  std::vector<double> norms_;
  std::vector<Apart> apart_;
};

}  // namespace trainer
