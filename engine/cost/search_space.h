// SearchSpace: what a search is given, and what it says of each candidate.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/cost/candidate.h"
#include "engine/cost/cost_model.h"
#include "engine/cost/known_schedules.h"
#include "engine/cost/profile.h"

namespace trainer::cost {

/// What a search needs to know of the job and the cluster.
struct SearchSpace {
  const Job* job = nullptr;  ///< what it fixes stands
  const MachineModel* machine = nullptr;
  int world_size = 1;
  int ranks_per_node = 1;
  int threads = 0;               ///< of a rank of a CPU
  std::int64_t limit_bytes = 0;  ///< of one rank
  double state_bytes = 8;        ///< of the optimizer's states of a parameter, beside the f32 master weight
};

/// Bytes of a trained parameter's master and states that its device keeps. `state_bytes`: of all its states. An f32
/// working copy is the master, and stays unless parameters are kept elsewhere.
double bytes_on_device(const Job& job, double state_bytes);
/// Bytes of a parameter's working copy that its device keeps, where that is another than the master.
std::int64_t working_bytes_on_device(const Job& job);

/// Makes profiles and cuts, when the search asks for them, and keeps them. Several threads may ask.
class ProfileSource {
 public:
  virtual ~ProfileSource() = default;
  /// Of a candidate only what shapes its graph counts: of the mesh the axes expert, tensor and context, sequence
  /// parallelism, the kind of context parallelism, the micro-batch and what is recomputed or gathered again. Null where
  /// the model cannot be cut so; then `why_not` says why.
  virtual const Profile* profile(const Candidate& candidate) = 0;
  virtual std::string why_not(const Candidate& candidate) = 0;
  /// What each expert axis has to divide: the number of experts; 1: there are none.
  virtual std::int64_t experts() = 0;
  /// The piece with which each of `chunks` chunks begins, the first with 0; empty: the model has too few pieces.
  /// `samples`: of a micro-batch of all ranks; the more there are, the less weights count beside activations.
  virtual const std::vector<int>& cut(int chunks, std::int64_t samples) = 0;

  KnownSchedules& schedules() { return schedules_; }

 private:
  KnownSchedules schedules_;
};

/// The stages that need most memory, the fullest first; -1: there is none more, or it is not known.
using FullestStages = std::array<int, 3>;
inline constexpr FullestStages kNoStages{-1, -1, -1};

struct Scored {
  Candidate candidate;
  double step_us = 0;
  double spread = 0;  ///< half of the predicted interval, as a share of step_us; 0 of a score, which has no interval
  std::int64_t bytes = 0;  ///< of the fullest rank
  FullestStages fullest = kNoStages;
  bool fits = false;
  // Of step_us, about:
  double compute_us = 0;    ///< kernels that no strategy saves
  double recompute_us = 0;  ///< done a second time
  double tensor_us = 0;     ///< communication along the tensor axis
  double data_us = 0;       ///< communication along the data axes that nothing hides
  double bubble_us = 0;     ///< waits for other stages, unequal stages among them
  double update_us = 0;
};

}  // namespace trainer::cost
