// A serial simulation of local SGD, for `trainer verify`: each data rank's share of every batch is trained on one rank
// by itself, and at the end of a round (or where a part is due) the shares are brought together on the host, in f64, by
// the formulas of the papers that strategies/data/local_sgd.cpp names. Of the engine it uses the training of one rank
// and checkpoints, but no plan in which ranks average.
//
//   averages     w = mean over ranks of w, and so each state of the optimizer
//   outer        g = anchor − mean of w;  u = μ u + g;  anchor −= lr (g + μ u), or lr u without Nesterov;  w = anchor
//                compressed: g = the compressed sum of each rank's anchor − w, over the ranks (serial_codes.h)
//   delayed      w += mean of the snapshots − this rank's snapshot, then snapshot = w; at the end w = mean of w
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/compile/compile.h"
#include "engine/train/local_units.h"
#include "engine/train/serial_codes.h"

namespace trainer {

class SerialRounds {
 public:
  /// Trains share `share` in `folder` until step `until`, from where the folder's checkpoint is.
  using TrainShare = std::function<void(int share, const std::string& folder, std::int64_t until)>;

  /// `ranks` is the plan that is simulated, `one` that of a share. `ranks` outlives it. Folders are made inside
  /// `folder`. REQUIRES: `ranks` averages.
  SerialRounds(const Job& job, const CompiledJob& ranks, const CompiledJob& one, std::string folder, TrainShare train);

  /// From the weights in `initial`, up to step `end` of the job's. Returns the checkpoint of what ranks then agree on.
  checkpoint::Checkpoint run(const checkpoint::Checkpoint& initial, std::int64_t end);

 private:
  using Values = std::vector<double>;

  bool due(std::int64_t step, int part) const;
  std::int64_t next_meeting(std::int64_t from, std::int64_t end) const;
  void meet(std::int64_t step, std::int64_t end);
  void combine(const std::string& name, std::vector<Values>& shares, std::int64_t step, std::int64_t end);
  bool steps_outside(std::int64_t step, std::int64_t end, int part) const;
  void sum_outer_gradients(const std::vector<checkpoint::Checkpoint>& shares, std::int64_t step, std::int64_t end);
  std::string folder_of(int share) const;

  const DataStrategyJob& data_;
  const std::int64_t steps_;
  const int num_shares_;
  const std::string folder_;
  const TrainShare train_;
  std::map<std::string, int> parts_;  // of trained parameters
  std::set<std::string> states_;      // of the optimizer, by name
  std::map<std::string, Values> anchors_, momenta_;
  std::map<std::string, std::vector<Values>> snapshots_;
  struct CompressedUnit {
    LocalUnit local;
    CompressedSums sums;
  };
  std::vector<CompressedUnit> compressed_;         // where outer gradients are
  std::map<std::string, Values> outer_gradients_;  // that were compressed, of this meeting
};

}  // namespace trainer
