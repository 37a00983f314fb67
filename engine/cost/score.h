// Score: step time and memory of candidates, from profiles. See search.h for what that is good for. What candidates
// have in common is worked out once: a Frame is a mesh without its data axes, a micro-batch and a recomputation; a
// Pipelined is a frame's schedule.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "engine/cost/search_space.h"
#include "engine/job/resolve.h"
#include "engine/plan/strategy.h"

namespace trainer::cost {

/// A frame under one schedule.
struct Pipelined {
  const KnownSchedule* schedule = nullptr;  ///< where micro-batches are many: of five for each stage
  const KnownSchedule* before = nullptr;    ///< then of four: what each further one adds
  std::vector<std::size_t> begins;          ///< of each chunk: its first piece
  std::vector<Piece> chunks;                ///< sums
  std::vector<std::vector<Piece>> units;    ///< of each stage: its pieces with parameters
  std::vector<Piece> stages;                ///< sums of those
  std::vector<std::int64_t> peaks;          ///< bytes of activations at each stage's fullest moment
  std::map<std::pair<std::vector<double>, std::vector<double>>, double>
      makespans;  ///< by what data axes add to each stage's passes
};

/// Of one thread: what it works out it keeps.
class Scorer {
 public:
  Scorer(const SearchSpace& space, ProfileSource& profiles) : space_(space), profiles_(profiles) {}

  /// Null: the candidate cannot be (its tensor degree is refused).
  const Profile* profile_of(const Candidate& candidate);
  /// No schedule and no data strategy can be faster: what the average rank computes.
  double at_least_us(const Candidate& candidate, const Profile& profile) const;
  /// False: the schedule refuses these numbers, or the model has too few pieces.
  bool pipeline(const Candidate& candidate, const Profile& profile, Pipelined& pipelined);
  /// The cut that is for memory (cut.h), of a candidate that has been cut otherwise.
  std::vector<int> cut_for_memory(const Candidate& candidate, const Profile& profile, const Pipelined& pipelined) const;
  /// Memory of the fullest rank; `fullest`: Scored::fullest.
  std::int64_t bytes_of(const Candidate& candidate, const Profile& profile, const Pipelined& pipelined,
                        FullestStages* fullest = nullptr) const;
  Scored score(const Candidate& candidate, const Profile& profile, Pipelined& pipelined);
  const CostModel& model_of(const Mesh& mesh);
  ResolvedData resolved(const Candidate& candidate) const;

 private:
  bool shorten(const Candidate& candidate, Pipelined& pipelined);
  double offload_us(const CostModel& model, double updated) const;
  double update_on_host_us(const CostModel& model, double updated) const;
  std::int64_t static_bytes(const Candidate& candidate, const ResolvedData& data, const Piece& stage,
                            const std::vector<Piece>& units) const;
  double makespan(const Candidate& candidate, Pipelined& pipelined, const std::vector<double>& forward,
                  const std::vector<double>& backward);

  const SearchSpace& space_;
  ProfileSource& profiles_;
  std::map<Mesh, std::unique_ptr<CostModel>> models_;
  std::map<const Profile*, Profile> pairs_;  // by that of one micro-batch
};

}  // namespace trainer::cost
